"""A primary with replicas, watched by sentinels, from the same server binary."""

from __future__ import annotations

import hiredis

from penstock.testing.binaries import Binary
from penstock.testing.servers import ServerProcess, Startable, wait_until

__all__ = ["SentinelProcess", "SentinelSetup"]

_READY_TIMEOUT_S = 30.0


class SentinelProcess(ServerProcess):
    """One sentinel; it keeps what it learns in a file in its folder."""

    def __init__(
        self, watched: ServerProcess, service: str, quorum: int, *, binary: str | Binary = "valkey"
    ) -> None:
        super().__init__(binary)
        self.service = service
        lines = (
            f"port {self.port}",
            "bind 127.0.0.1",
            f'unixsocket "{self.socket_path}"',
            f'dir "{self.folder}"',
            f"sentinel monitor {service} {watched.address[0]} {watched.port} {quorum}",
            f"sentinel down-after-milliseconds {service} 800",
            f"sentinel failover-timeout {service} 3000",
        )
        self._config = self.folder / "sentinel.conf"
        self._config.write_text("\n".join(lines) + "\n")

    @property
    def primary_address(self) -> tuple[str, int]:
        """Where this sentinel believes the primary to be."""
        host, port = self.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)
        return host, int(port)

    def knows(self, *, replicas: int, sentinels: int) -> bool:
        """Whether it sees that many replicas and other sentinels of its service."""
        reply = self.command("SENTINEL", "MASTER", self.service)
        facts = dict(zip(reply[::2], reply[1::2], strict=True))
        return (
            int(facts["num-slaves"]) >= replicas
            and int(facts["num-other-sentinels"]) >= sentinels
            and facts["flags"] == "master"
        )

    def _command_line(self) -> list[str]:
        return [str(self.binary.path), str(self._config), "--sentinel"]


class SentinelSetup(Startable):
    """One primary, `replicas` replicas in step and `sentinels` sentinels that know each other."""

    def __init__(
        self,
        sentinels: int = 1,
        replicas: int = 1,
        *arguments: str,
        binary: str | Binary = "valkey",
        service: str = "main",
    ) -> None:
        self.service = service
        first = ServerProcess(binary, *arguments)
        self.servers = [first] + [
            ServerProcess(binary, *arguments, "--replicaof", first.address[0], str(first.port))
            for _ in range(replicas)
        ]
        """The first primary, then its replicas; after a failover the roles have changed."""
        self.sentinels = [
            SentinelProcess(first, service, sentinels // 2 + 1, binary=binary)
            for _ in range(sentinels)
        ]

    @property
    def url(self) -> str:
        places = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{places}/{self.service}"

    @property
    def primary_address(self) -> tuple[str, int]:
        """Host and port of the primary as the sentinels name it; waits while they disagree."""
        return self.primary.address

    @property
    def primary(self) -> ServerProcess:
        """The running primary that all sentinels name; waits for it."""
        return wait_until(
            self._agreed_primary, what="the sentinels to agree", timeout_s=_READY_TIMEOUT_S
        )

    def start(self) -> None:
        """Start everything and return when a failover would succeed."""
        for process in (*self.servers, *self.sentinels):
            process.start()
        others = len(self.sentinels) - 1
        wait_until(
            lambda: (
                all(server.is_in_step for server in self.servers)
                and all(
                    sentinel.knows(replicas=len(self.servers) - 1, sentinels=others)
                    for sentinel in self.sentinels
                )
            ),
            what="sentinels and replicas to find each other",
            timeout_s=_READY_TIMEOUT_S,
        )

    def failover(self) -> ServerProcess:
        """Let a replica take over; returns it once all agree on it and the old primary follows."""
        old = self.primary

        def accepted() -> bool:
            try:
                return self.sentinels[0].command("SENTINEL", "FAILOVER", self.service) == "OK"
            except hiredis.ReplyError:  # no replica fits yet, or a failover is under way
                return False

        wait_until(accepted, what="a sentinel to begin", timeout_s=_READY_TIMEOUT_S)
        new = self.wait_for_new_primary(old)
        # The sentinels would let the old one take writes for some ten seconds more.
        old.command("REPLICAOF", *new.address)
        wait_until(lambda: old.is_in_step and new.is_in_step, what=f"{old} to follow {new}")
        return new

    def wait_for_new_primary(self, old: ServerProcess) -> ServerProcess:
        """Return the primary that takes the place of `old`, once all agree on it."""
        wait_until(
            lambda: self._agreed_primary() not in {None, old},
            what=f"another primary than {old}",
            timeout_s=_READY_TIMEOUT_S,
        )
        return self.primary

    def close(self) -> None:
        """End the sentinels, then the servers, and remove their data."""
        for process in (*self.sentinels, *self.servers):
            process.close()

    def _agreed_primary(self) -> ServerProcess | None:
        named = {sentinel.primary_address for sentinel in self.sentinels if sentinel.is_running}
        for server in self.servers:
            if named == {server.address} and server.is_running and not server.is_paused:
                return server if server.info("replication")["role"] == "master" else None
        return None
