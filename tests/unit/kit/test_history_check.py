"""Each invariant convicts the smallest history that breaks it, by name, and nothing else."""

import time

import pytest
from tests.kit.history import Counts, Event, HistoryBroken, check


class Script:
    """Writes a history line by line, one second apart."""

    def __init__(self):
        self.events = []

    def __call__(self, actor, op, phase="", **facts):
        number = len(self.events)
        self.events.append(
            Event(
                seq=number,
                actor=actor,
                pid=1,
                t_mono=float(number),
                t_wall=1e9 + number,
                op=op,
                phase=phase,
                **facts,
            )
        )
        return number

    def sent(self, msg="1-0", *, key="k", actor="p", phase="ok", **facts):
        """A send; its payload is named after the id."""
        call = self(actor, "send", "invoke", key=key, payload_hash=f"#{msg}", **facts)
        told = {"msg": msg, "partition": 0} if phase == "ok" else {}
        if phase:
            self(actor, "send", phase, call=call, **told)

    def start(self, msg="1-0", *, actor="w", attempt=1, **facts):
        facts = {"payload_hash": f"#{msg}", "partition": 0, "group": "g"} | facts
        self(actor, "start", msg=msg, attempt=attempt, **facts)

    def finish(self, msg="1-0", phase="ok", *, actor="w", attempt=1):
        self(actor, "finish", phase, msg=msg, partition=0, group="g", attempt=attempt)

    def settle(self, msg="1-0", phase="accepted", *, op="ack", actor="w", **facts):
        self(actor, op, phase, msg=msg, partition=0, group="g", **facts)

    def run(self, msg="1-0", phase="ok", *, actor="w", attempt=1, op="ack"):
        self.start(msg, actor=actor, attempt=attempt)
        self.finish(msg, phase, actor=actor, attempt=attempt)
        self.settle(msg, actor=actor, op=op, attempt=attempt)

    def grant(self, fence, actor="w"):
        self(actor, "grant", fence=fence, partition=0, group="g")

    def found(self, place, msg="1-0", **facts):
        facts = {"payload_hash": f"#{msg}", "partition": 0, "group": "g"} | facts
        self("reader", "final", place=place, msg=msg, **facts)

    def dead_letter(self, msg="1-0", **facts):
        self.found("dlq", msg, **({"key": "k", "attempt": 3, "detail": "ValueError"} | facts))

    def convicted(self, **rules):
        return self.verdict(**rules).convicted

    def verdict(self, **rules):
        return check(self.events, **({"max_attempts": 3} | rules))


@pytest.fixture
def script():
    return Script()


def test_an_empty_history_breaks_nothing_and_proves_nothing(script):
    verdict = script.verdict()
    assert verdict.ok
    assert verdict.examined.total() == 0


def test_a_message_that_was_sent_run_and_acked_breaks_nothing(script):
    script.grant(1)
    script.sent()
    script.run()
    script.found("log", group="")
    verdict = script.verdict()
    assert verdict.ok, str(verdict)
    assert verdict.counts.sent_ok == verdict.counts.started == verdict.counts.finished == 1
    assert {"I01", "I02", "I03", "I05", "I06", "I07", "I08", "I11", "I12"} <= set(verdict.examined)


# I01: nothing confirmed is lost


def test_a_confirmed_message_that_is_nowhere_is_lost(script):
    script.sent("1-0")
    script.sent("2-0")
    script.run("1-0")
    verdict = script.verdict()
    assert verdict.convicted == {"I01"}
    assert verdict.counts.lost == 1
    assert "2-0" in str(verdict)
    assert verdict.violations[0].evidence[0].msg == "2-0"


@pytest.mark.parametrize("where", ["stream", "pending", "retry", "delayed"])
def test_what_is_still_stored_is_not_lost(script, where):
    script.sent()
    script.found(where)
    assert script.verdict().ok


def test_an_entry_that_is_in_the_log_but_was_skipped_is_lost(script):
    script.sent()
    script.found("log", group="")
    assert script.convicted(groups={"g"}) == {"I01"}


def test_every_group_must_get_every_message(script):
    script.sent()
    script.run()
    assert script.convicted(groups={"g", "other"}) == {"I01"}


def test_an_unknown_send_may_vanish_but_once_seen_it_counts(script):
    script.sent("1-0", phase="unknown")
    script.sent("2-0", phase="")
    script.grant(1)
    assert script.verdict().ok
    script.start("1-0")
    verdict = script.verdict()
    assert verdict.convicted == {"I01"}
    assert (verdict.counts.sent_unknown, verdict.counts.recovered) == (2, 1)


@pytest.mark.parametrize("facts", [{"msg": "1-0", "partition": 0}, {"partition": 0}, {}])
def test_what_an_operator_purged_is_not_lost(script, facts):
    script.sent()
    script.grant(1)
    script("admin", "purge", **facts)
    assert script.verdict().ok
    script.sent("2-0")
    assert script.convicted() == {"I01"}


def test_a_purge_for_one_group_does_not_excuse_another(script):
    script.sent()
    script("admin", "purge", msg="1-0", partition=0, group="g")
    assert script.verdict(groups={"g"}).ok
    assert script.convicted(groups={"g", "other"}) == {"I01"}


# I02: in exactly one place


def test_a_message_in_two_places_is_convicted(script):
    script.sent()
    script.found("pending")
    script.found("dlq", key="k", attempt=1, detail="ValueError")
    assert script.convicted() == {"I02"}


def test_a_message_delayed_and_delivered_is_in_two_places(script):
    script.sent(delay_s=1)
    script.found("delayed", "d1", group="", payload_hash="#1-0")
    script.found("stream")
    assert script.convicted() == {"I02"}


def test_a_message_acked_and_still_pending_is_convicted(script):
    script.sent()
    script.run()
    script.found("pending")
    assert script.convicted() == {"I02"}


# I03: one message for one send


def test_one_idempotency_key_has_one_message(script):
    script.sent("1-0", idem="once")
    script.sent("1-0", idem="once")
    script.run("1-0")
    assert script.verdict().ok
    script.sent("2-0", idem="once")
    assert "I03" in script.convicted()


def test_a_delayed_send_repeated_returns_the_same_id(script):
    script.sent("delayed-1", idem="once", delay_s=1)
    script.sent("delayed-2", idem="once", delay_s=1)
    script.start("7-0", payload_hash="#delayed-1")
    script.finish("7-0")
    assert script.convicted() == {"I03"}


def test_a_send_that_was_stored_twice_is_convicted(script):
    script.sent("1-0")
    script.run("1-0")
    script.start("2-0", payload_hash="#1-0")
    script.finish("2-0")
    script.settle("2-0")
    assert script.convicted() == {"I03"}


def test_equal_payloads_of_two_sends_stay_two_messages(script):
    for msg in ("1-0", "2-0"):
        call = script("p", "send", "invoke", payload_hash="same")
        script("p", "send", "ok", call=call, partition=0, msg=msg)
        script.start(msg, payload_hash="same")
        script.finish(msg)
    assert script.verdict().ok


def test_a_replayed_dead_letter_may_exist_again(script):
    script.sent("1-0")
    script.run("1-0", "fail", op="dead")
    script("admin", "replay", "ok", partition=0, msg="1-0")
    script.start("2-0", payload_hash="#1-0")
    script.finish("2-0")
    script.found("log", "1-0", group="")
    assert script.verdict().ok


def test_a_replay_that_failed_explains_no_second_copy(script):
    script.sent("1-0")
    script.run("1-0", "fail", op="dead")
    script("admin", "replay", "fail", partition=0, msg="1-0")
    script.start("2-0", payload_hash="#1-0")
    script.finish("2-0")
    assert script.convicted() == {"I03"}


# I04: no rerun without a reason


def test_a_rerun_without_a_loss_is_convicted(script):
    script.sent()
    script.run()
    script.run(attempt=2)
    assert script.convicted() == {"I04"}


@pytest.mark.parametrize(
    "loss", [{"victim": "w"}, {"victim": "w", "partition": 0, "group": "g"}, {"partition": 0}, {}]
)
def test_a_loss_explains_a_rerun(script, loss):
    script.sent()
    script.start()
    script("nemesis", "lose", **loss)
    script.run(actor="w2", attempt=2)
    assert script.verdict().ok


@pytest.mark.parametrize(
    "loss", [{"victim": "x"}, {"victim": "w", "partition": 1}, {"partition": 0, "group": "other"}]
)
def test_a_loss_elsewhere_explains_nothing(script, loss):
    script.sent()
    script.start()
    script("nemesis", "lose", **loss)
    script.run(actor="w2", attempt=2)
    assert script.convicted(groups={"g"}) == {"I04"}


def test_a_loss_before_the_lease_was_given_explains_nothing(script):
    script.sent()
    script("nemesis", "lose", victim="w")
    script.grant(2)
    script.start()
    script.grant(3, actor="w2")
    script.run(actor="w2", attempt=2)
    assert script.convicted() == {"I04"}


def test_a_loss_does_not_excuse_two_runs_under_one_lease(script):
    script.sent()
    script.grant(1)
    script.start()
    script("nemesis", "lose", victim="other")
    script.run(attempt=2)
    assert script.convicted() == {"I04"}


def test_a_failed_a_retried_and_a_cancelled_run_may_be_repeated(script):
    script.sent()
    script.start(attempt=1)
    script.finish(phase="cancelled", attempt=1)
    script.run(attempt=1, phase="fail", op="retry")
    script.start(attempt=2)
    script.settle(op="retry")
    script.run(attempt=3)
    verdict = script.verdict()
    assert verdict.ok, str(verdict)


# I05: order of first starts


def test_a_later_message_of_a_key_must_not_start_first(script):
    script.sent("1-0")
    script.sent("2-0")
    script.run("2-0")
    script.run("1-0")
    assert script.convicted() == {"I05"}
    assert script.convicted(ordering="key") == {"I05"}
    assert script.convicted(ordering="none") == set()


def test_the_order_of_a_producer_is_kept_across_partitions(script):
    for partition, msg in ((0, "9-0"), (1, "1-0")):
        call = script("p", "send", "invoke", key="k", payload_hash=f"#{msg}")
        script("p", "send", "ok", call=call, partition=partition, msg=msg)
    for partition, msg in ((1, "1-0"), (0, "9-0")):
        script.start(msg, partition=partition)
        script("w", "finish", "ok", msg=msg, partition=partition, group="g", attempt=1)
    assert script.convicted(ordering="key") == {"I05"}


def test_other_keys_may_overtake_unless_the_partition_is_ordered(script):
    script.sent("1-0", key="a")
    script.sent("2-0", key="b")
    script.run("2-0")
    script.run("1-0")
    assert script.convicted(ordering="key") == set()
    assert script.convicted(ordering="partition") == {"I05"}


def test_a_retry_may_come_after_later_messages(script):
    script.sent("1-0")
    script.sent("2-0")
    script.run("1-0", "fail", op="retry")
    script.run("2-0")
    script.run("1-0", attempt=2)
    assert script.verdict().ok


def test_a_send_that_was_repeated_or_delayed_has_no_place_in_the_order_of_calls(script):
    script.sent("2-0", idem="once", phase="unknown")
    script.sent("delayed-1", delay_s=1)
    script.sent("1-0")
    script.sent("2-0", idem="once")
    for msg in ("1-0", "2-0"):
        script.run(msg)
    script.start("3-0", payload_hash="#delayed-1")
    script.finish("3-0")
    verdict = script.verdict()
    assert verdict.ok, str(verdict)


def test_a_replay_may_come_after_later_messages(script):
    script.sent("1-0")
    script.sent("2-0")
    script.run("1-0", "fail", op="dead")
    script("admin", "replay", "ok", partition=0, msg="1-0")
    script.run("2-0")
    script.start("3-0", payload_hash="#1-0")
    script.finish("3-0")
    assert script.verdict().ok


# I06: no overlap


def overlapping(script, second_outcome, second_key="k"):
    script.sent("1-0")
    script.sent("2-0", key=second_key)
    script.start("1-0")
    script.start("2-0", actor="w2")
    script.finish("1-0")
    script.finish("2-0", actor="w2")
    script.settle("1-0")
    script.settle("2-0", second_outcome, actor="w2")


def test_accepted_runs_of_a_key_must_not_overlap(script):
    overlapping(script, "accepted")
    assert script.convicted(ordering="key") == {"I06"}
    assert script.convicted(ordering="partition") == {"I06"}
    assert script.convicted(ordering="none") == set()


def test_runs_of_two_keys_overlap_only_where_the_partition_is_serial(script):
    overlapping(script, "accepted", second_key="other")
    assert script.convicted(ordering="key") == set()
    assert script.convicted(ordering="partition") == {"I06"}


def test_a_run_that_was_refused_may_overlap(script):
    overlapping(script, "refused")
    assert script.verdict().ok


# I07 and I26: nothing from the void, nothing that was rejected


@pytest.mark.parametrize("op", ["start", "final", "ack"])
def test_what_nobody_sent_must_not_be_seen(script, op):
    script("w", op, "accepted" if op == "ack" else "", msg="1-0", partition=0, group="g")
    assert script.convicted() == {"I07"}


def test_a_write_may_be_about_a_send_of_unknown_outcome(script):
    script.sent(phase="unknown")
    script.settle(op="dead")
    script.dead_letter()
    assert script.verdict().ok


def test_bytes_must_not_change(script):
    script.sent()
    script.start(payload_hash="other")
    script.finish()
    assert script.convicted() == {"I07"}


def test_two_messages_must_not_share_an_id(script):
    script.sent("1-0")
    call = script("p", "send", "invoke", payload_hash="other")
    script("p", "send", "ok", call=call, partition=0, msg="1-0")
    script.run("1-0")
    assert "I07" in script.convicted()


def test_a_rejected_send_must_not_be_seen(script):
    script.sent(phase="fail")
    script.grant(1)
    assert script.verdict().ok
    script.run()
    assert script.convicted() == {"I26"}


# I08, I09, I10, I16: one owner


def test_a_fence_is_granted_once(script):
    script.grant(1)
    script.grant(1, actor="w2")
    assert script.convicted() == {"I10"}


def test_fences_grow(script):
    script.grant(2)
    script.grant(1, actor="w2")
    assert script.convicted() == {"I08"}


def test_a_grant_that_was_on_its_way_while_its_owner_stood_still_is_no_step_back(script):
    call = script("w", "grant", "invoke", partition=0, group="g")
    script.grant(2, actor="w2")
    script("w", "grant", "ok", call=call, fence=1, partition=0, group="g")
    assert script.verdict().ok


def stale_ack(script, outcome):
    script.sent()
    script.grant(1)
    script.start()
    script("nemesis", "lose", victim="w")
    script.grant(2, actor="w2")
    script.run(actor="w2", attempt=2)
    script.finish()
    script.settle(phase=outcome)


def test_a_stale_ack_that_is_refused_or_lost_breaks_nothing(script):
    stale_ack(script, "refused")
    verdict = script.verdict(ordering="key")
    assert verdict.ok, str(verdict)
    assert verdict.examined["I09"] == 1


def test_a_stale_ack_must_not_be_accepted(script):
    stale_ack(script, "accepted")
    assert script.convicted(ordering="none") == {"I08", "I09", "I16"}


def test_a_stale_ack_gets_the_right_refusal(script):
    stale_ack(script, "fail")
    assert script.convicted() == {"I09"}


def test_an_ack_taken_before_its_owner_stood_still_is_not_stale(script):
    script.sent()
    script.grant(1)
    script.start()
    script.finish()
    call = script("w", "ack", "invoke", msg="1-0", partition=0, group="g")
    script.grant(2, actor="w2")
    script("w", "ack", "accepted", call=call)
    assert script.verdict().ok


def test_an_owner_that_knows_its_loss_cannot_ack_any_more(script):
    script.sent()
    script.grant(1)
    script.start()
    script("w", "lose", victim="w", partition=0, group="g")
    script.finish()
    script.settle()
    assert script.convicted() == {"I09"}


def test_an_owner_that_was_stopped_and_kept_its_lease_may_ack(script):
    script.sent()
    script.grant(1)
    script.start()
    script("nemesis", "lose", victim="w", partition=0, group="g")
    script.finish()
    script.settle()
    assert script.verdict().ok


def test_an_owner_that_lost_its_lease_may_ack_under_the_next(script):
    script.sent()
    script.grant(1)
    script("w", "lose", victim="w", partition=0, group="g")
    script.grant(2)
    script.run()
    assert script.verdict().ok


@pytest.mark.parametrize(("loss", "expected"), [({}, set()), ({"partition": 0}, {"I16"})])
def test_a_server_that_forgot_an_ack_may_get_it_again(script, loss, expected):
    script.sent()
    script.run()
    script("nemesis", "lose", **loss)
    script.run(actor="w2", attempt=2)
    assert script.convicted() == expected


def test_a_message_is_settled_once(script):
    script.sent()
    script.run()
    script.settle()  # its owner repeats itself
    assert script.verdict().ok
    script.settle(actor="w2")
    assert script.convicted() == {"I16"}


# I11, I12: attempts


def test_more_starts_than_allowed_are_convicted_crashes_included(script):
    script.sent()
    for attempt in (1, 2, 3, 4):
        script.start(attempt=attempt, actor=f"w{attempt}")
        script("nemesis", "lose", victim=f"w{attempt}")
    script.dead_letter(attempt=4)
    assert script.convicted() == {"I11"}


def test_an_attempt_is_not_counted_twice(script):
    script.sent()
    script.run(phase="fail", op="retry", attempt=1)
    script.run(attempt=1)
    assert script.convicted() == {"I12"}


def test_a_number_comes_again_once_for_each_attempt_that_was_taken_back(script):
    script.sent()
    for actor in ("w1", "w2"):
        script.start(actor=actor)
        script.finish(actor=actor)
        script("nemesis", "lose", victim=actor)
    script("w1", "uncharge", msg="1-0", partition=0, group="g")
    assert script.verdict(max_attempts=1).ok
    script.run(actor="w3")
    assert script.convicted() == {"I12"}
    assert script.convicted(max_attempts=1) == {"I11", "I12"}


def test_taking_back_what_never_began_excuses_no_repeat(script):
    script.sent()
    script("w", "uncharge", msg="1-0", partition=0, group="g")
    script.run(phase="fail", op="retry", attempt=1)
    script.run(attempt=1)
    assert script.convicted() == {"I12"}


def test_a_gap_between_attempts_is_convicted_unless_allowed(script):
    script.sent()
    script.run(phase="fail", op="retry", attempt=1)
    script.run(attempt=3)
    assert script.convicted() == {"I12"}
    assert script.verdict(attempt_gaps=True).ok


# I15: dead letters


def exhausted(script):
    script.sent()
    for attempt, op in ((1, "retry"), (2, "retry"), (3, "dead")):
        script.run(phase="fail", attempt=attempt, op=op)


def test_an_exhausted_message_has_one_honest_dead_letter(script):
    exhausted(script)
    script.dead_letter()
    verdict = script.verdict()
    assert verdict.ok, str(verdict)
    assert verdict.counts.dead == 1


@pytest.mark.parametrize(
    "wrong", [{"key": ""}, {"payload_hash": "other"}, {"attempt": 1}, {"detail": ""}]
)
def test_a_dead_letter_that_lacks_something_is_convicted(script, wrong):
    exhausted(script)
    script.dead_letter(**wrong)
    assert "I15" in script.convicted()


def test_two_dead_letters_of_one_failure_are_convicted(script):
    exhausted(script)
    script.dead_letter()
    script.dead_letter()
    assert script.convicted() == {"I02", "I15"}


def test_a_dead_letter_that_cannot_be_found_is_convicted(script):
    exhausted(script)
    script.found("log", group="")
    assert script.convicted() == {"I15"}


def test_a_purged_dead_letter_need_not_be_found(script):
    exhausted(script)
    script.found("log", group="")
    script("admin", "purge", msg="1-0", partition=0, group="g")
    assert script.verdict().ok


def test_an_exhausted_message_that_is_acked_away_is_convicted(script):
    script.sent()
    for attempt, op in ((1, "retry"), (2, "retry"), (3, "ack")):
        script.run(phase="fail", attempt=attempt, op=op)
    assert script.convicted() == {"I01", "I15"}


# I19: never early


def test_a_delayed_message_must_not_start_early(script):
    script.sent(delay_s=5)
    script.run()
    assert script.convicted() == {"I19"}
    assert script.verdict(early_s=3).ok


def test_a_delayed_message_may_start_when_it_is_due(script):
    script.sent("delayed-1", delay_s=2)
    script.start("7-0", payload_hash="#delayed-1")
    script.finish("7-0")
    assert script.verdict().ok


# the verdict


def test_the_counts_tell_what_became_of_the_messages(script):
    script.sent("1-0")
    script.sent("2-0")
    script.sent("3-0", phase="unknown")
    script.sent("4-0", phase="unknown")
    script.sent("5-0", phase="fail")
    script.run("1-0")
    script("nemesis", "lose")
    script.run("1-0", attempt=2)
    script.run("2-0", "fail", op="dead")
    script.run("3-0")
    script.dead_letter("2-0")
    assert script.verdict().counts == Counts(
        sent_ok=2,
        sent_unknown=2,
        sent_failed=1,
        recovered=1,
        started=4,
        finished=2,
        duplicated=1,
        dead=1,
        lost=0,
    )


def test_a_waived_invariant_is_not_held_against_the_run(script):
    script.grant(1)
    script.grant(1)
    assert script.verdict(waive={"I10"}).ok


def test_a_thousand_violations_are_counted_and_twenty_are_told(script):
    for number in range(1000):
        script.sent(f"{number}-0")
    verdict = script.verdict()
    assert verdict.totals["I01"] == verdict.counts.lost == 1000
    assert len(verdict.violations) == 20


def test_twenty_thousand_messages_are_checked_in_two_seconds_of_processor_time(script):
    script.grant(1)
    for number in range(20_000):
        script.sent(f"{number}-0", key=f"key-{number % 100}")
        script.run(f"{number}-0")
    began = time.process_time()
    verdict = script.verdict()
    assert time.process_time() - began < 2
    assert verdict.ok, str(verdict)
    assert verdict.counts.finished == 20_000


def test_a_violation_shows_what_happened_when_and_by_whom(script):
    script.grant(2)
    script.grant(1, actor="w2")
    first, second = str(script.verdict()).splitlines()[-2:]
    assert "0.000000 w grant" in first
    assert "1.000000 w2 grant" in second


def test_a_send_that_ended_without_beginning_makes_the_history_useless(script):
    script("p", "send", "ok", call=77, msg="1-0", partition=0)
    with pytest.raises(HistoryBroken, match="without its invoke"):
        script.verdict()


# Jobs, which are claimed one by one


def claim(script, fence, actor="w"):
    told = {"msg": "1-0", "partition": 0, "group": "g", "payload_hash": "#1-0"}
    call = script(actor, "claim", "invoke")
    script(actor, "claim", "ok", call=call, fence=fence, **told)


def late_ack(script, phase):
    """One worker stands still with a job, another claims it and does it, the first says its ack."""
    script.sent()
    claim(script, 1, "a")
    script.start(actor="a")
    script("nemesis", "lose", victim="a")
    claim(script, 1, "b")
    script.run(actor="b", attempt=2)
    script.finish(actor="a")
    script.settle(actor="a", phase=phase, fence=1)


def test_an_ack_under_a_claim_that_has_passed_to_another_is_stale(script):
    late_ack(script, "accepted")
    assert script.convicted(ordering="none") == {"I08", "I09", "I16"}


def test_an_ack_that_was_refused_breaks_nothing(script):
    late_ack(script, "refused")
    verdict = script.verdict(ordering="none")
    assert verdict.ok, str(verdict)
    assert verdict.examined["I09"] == 1


def test_a_job_that_runs_again_though_its_worker_has_it_was_not_to(script):
    script.sent()
    claim(script, 1, "a")
    script.start(actor="a")
    claim(script, 1, "b")
    script.run(actor="b", attempt=2)
    assert script.convicted(ordering="none") == {"I04"}


def test_who_lost_a_claim_may_learn_of_it_when_the_job_runs_elsewhere(script):
    script.sent()
    claim(script, 1, "a")
    script.start(actor="a")
    claim(script, 1, "b")
    script.run(actor="b", attempt=2)
    script("a", "lose", victim="a", partition=0, group="g", msg="1-0", fence=1)
    verdict = script.verdict(ordering="none")
    assert verdict.ok, str(verdict)
