"""Secrets out of texts that describe errors, before they are stored, shown or logged.

`redacted` knows how passwords, tokens and keys are usually written: in addresses, as fields of
JSON, of Python and of forms, in headers and commands, and by the shape of well-known tokens. What
stands around a secret stays: host, user and names of fields. It is for texts about the work, not
for payloads, which are the user's data. Each pattern is linear in the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice
from typing import Final, TypeAlias

__all__ = ["HIDDEN", "is_secret_name", "redacted"]

HIDDEN: Final = "…"
_MOST_PASSES = 4
_Rule: TypeAlias = tuple[tuple[str, ...], re.Pattern[str], str | Callable[[re.Match[str]], str]]


def redacted(text: str) -> str:
    """`text` with each secret replaced by `…`. Redacting twice changes nothing more."""
    for _ in range(_MOST_PASSES):
        shown = _redacted_once(text)
        if shown == text:
            break
        text = shown  # what was hidden may have stood between the parts of another secret
    return text


def is_secret_name(name: str) -> bool:
    """Whether a field of this name holds a secret: `api_key`, `X-Token`, but no `password_file`."""
    return _SECRET_NAME.search(name) is not None


def _redacted_once(text: str) -> str:
    text = _in_fields(_hidden_by(_BEFORE_FIELDS, text))
    return _hidden_by(_AFTER_FIELDS, text)


def _hidden_by(rules: tuple[_Rule, ...], text: str) -> str:
    for signs, pattern, shown in rules:
        if any(sign in text for sign in signs):
            text = pattern.sub(shown, text)
    return text


# ---- by shape

_PEM = re.compile(
    r"(-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)"
    r"(?:(?!-----).)*+(-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)?",
    re.DOTALL,
)
_TOKEN_SIGNS: Final = (
    *("eyJ", "sk-", "sk_", "rk_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-"),
    *("xoxa-", "xoxb-", "xoxp-", "xoxr-", "xoxs-", "xapp-", "AKIA", "ASIA", "AIza", "hf_", "npm_"),
    *("pypi-", "ya29.", "SG.", "dop_v1_", "whsec_", "shpat_", "hvs.", "glsa_", "lin_api_"),
    *("ATATT3", "AGE-SECRET-KEY-1", "xoxe."),
)
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9_-])(?:"
    r"(eyJ)[A-Za-z0-9_-]{4,}+\.[A-Za-z0-9_-]{2,}+(?:\.[A-Za-z0-9_-]*+){0,3}"
    r"|(AKIA|ASIA)[A-Z0-9]{12,}+"
    rf"|({'|'.join(map(re.escape, _TOKEN_SIGNS[1:]))})"
    r"(?=[A-Za-z0-9_.-]{0,64}[A-Z0-9])[A-Za-z0-9_.-]{10,}+)"
)


def _in_token(found: re.Match[str]) -> str:
    return f"{found[1] or found[2] or found[3]}{HIDDEN}"


# Anyone who has such an address may post there.
_WEBHOOK_HOSTS: Final = ("hooks.slack.com", "/api/webhooks/", "api.telegram.org")
_WEBHOOK = re.compile(
    r"(hooks\.slack\.com/(?:services|workflows|triggers)/|/api/webhooks/\d{1,30}/"
    r"|api\.telegram\.org/(?:file/)?bot\d{1,20}:)[^\s'\"<>?#…]{8,}+",
    re.ASCII,
)


_SCHEME_AND_TOKEN = re.compile(
    r"(?<!\w)((?:bearer|basic)[ \t]{1,4})([A-Za-z0-9._~+/-]{6,}+={0,2})", re.IGNORECASE
)


def _in_scheme(found: re.Match[str]) -> str:
    # "Bearer authentication" and "Basic Authentication" are prose.
    is_token = re.search("[A-Z0-9=]", found[2][1:]) is not None
    return f"{found[1]}{HIDDEN}" if is_token else found[0]


# ---- in addresses

# A line break may stand in a password, if there is an @ soon after it.
_ADDRESS = re.compile(
    # A blank or a quote may, after a user and a colon.
    r"://([^\s'\"<>`@:/]*+:(?!\d{1,5}\b)[^\s'\"<>`@]*+[ '\"<>`][^\s'\"<>`/@:]{1,128}@[^\s'\"<>`]*+"
    r"|[^\s'\"<>`@]*+(?:[\r\n]{1,2}[^\s'\"<>`/@:]{0,128}@[^\s'\"<>`]*+)++|[^\s'\"<>`]*+)",
    re.ASCII,
)
# Digits before a / are a port: `http://host:80/a@b` has no password.
_USER_AND_COLON = re.compile(r"([^:/?#]*+):(?!\d{1,5}(?:[/?#\s]|$))", re.ASCII)
_LONE_USER = re.compile(r"[^:/?#@]++@")
_NEXT_ADDRESS = re.compile(r"[,;|(=\[{&]([A-Za-z][A-Za-z0-9+.-]{0,40}+)://", re.ASCII)
# What libpq takes for a host or a name, if a password has an @ or a blank.
_MISREAD = re.compile(
    r"((?:resolve host|host name) \\{0,8}['\"](?=[^'\"\s@]{1,256}@)"
    r"|missing \\{0,8}['\"]=\\{0,8}['\"] after \\{0,8}['\"])[^'\"\\\s@…]+",
    re.ASCII,
)
_ENCODED_ADDRESS = re.compile(
    r"(%3A%2F%2F(?:(?!%3A|%2F|%40)[^\s'\"<>&]){0,256}+%3A)"
    r"(?:(?!%40)[^\s'\"<>&]){0,256}+(%40)",
    re.IGNORECASE,
)


def _in_address(found: re.Match[str]) -> str:
    word, begin = found[1], 0
    scheme = found.string[max(0, found.start() - 5) : found.start()]
    parts = ["://"]
    for following in _NEXT_ADDRESS.finditer(word):  # several addresses with commas between them
        parts.append(_without_password(scheme, word[begin : following.start()]))
        parts.append(following[0])
        scheme, begin = following[1], following.end()
    parts.append(_without_password(scheme, word[begin:]))
    return "".join(parts)


def _without_password(scheme: str, rest: str) -> str:
    """Hide all from the colon after the user to the last @, as a password may hold an @ or a /."""
    end = rest.rfind("@")
    if end < 0:
        return rest
    is_web = scheme.lower().endswith(("http", "https", "ws", "wss"))
    user = _USER_AND_COLON.match(rest)
    if user is not None and user.end() <= end:
        # The user is the token.
        if (is_web or user[1] == HIDDEN) and rest[user.end() : end] in {"", "x-oauth-basic"}:
            return f"{HIDDEN if user[1] else ''}{rest[user.end() - 1 :]}"
        return f"{user[1]}:{HIDDEN if user.end() < end else ''}{rest[end:]}"
    if is_web and (lone := _LONE_USER.match(rest)):
        return f"{HIDDEN}{rest[lone.end() - 1 :]}"
    return rest


# ---- in fields: name, separator, value

_STEMS: Final = (
    *("pass", "pw", "secret", "token", "key", "sig", "auth", "cookie", "credential", "sess", "jwt"),
    *("identified by", "requirepass", "masterauth"),
)
_KINDS_OF_KEYS: Final = (
    r"(?:api|access|secret|private|account|shared|encrypt(?:ion)?|sign(?:ing)?|master|auth|service"
    r"|session|storage|license|subscription|functions?|hmac|jwt|aes|webhook|ssh|client|consumer"
    r"|app(?:lication)?)[ _.-]?"
)
_NAME = re.compile(
    r"(?P<strong>passw(?:or)?d(?:\d|s|[_-]?(?:hash|digest|confirm(?:ation)?))?|passphrase|passcode"
    r"|secret(?:s|[_-]?(?:id|value|text))?|identified\ by)"
    r"|(?P<word>token|credentials?|(?:proxy-)?authorization|(?:set-)?cookie"
    r"|sess(?:id|ion_?(?:id|key)))"
    r"|(?P<header>signature)"
    r"|(?P<command>requirepass|masterauth)"
    r"|(?P<key>keys?)"
    r"|(?P<bare>pass|pwd?|sig|auth|jwt)",
    re.IGNORECASE | re.VERBOSE,
)
_KIND_OF_KEY = re.compile(rf"{_KINDS_OF_KEYS}$", re.IGNORECASE)
_SECRET_NAME = re.compile(
    rf"(?:passw(?:or)?d|passphrase|secret|token|(?:{_KINDS_OF_KEYS})key|authorization|cookie"
    r"|credentials?|(?:^|[_-])(?:pwd|auth|sig(?:nature)?))$",
    re.IGNORECASE,
)
_SEPARATOR = re.compile(
    r"""
    (?P<quote>\\{0,8}["'`]|&quot;|&\#3[49];|%22)?
    (?:(?P<equals>(?:[ \t]|\\t){0,8}(?:={1,3}>?|:=|%3D))
        | (?P<colon>(?:\ (?:provided|supplied|given))?(?:\s|\\t){0,8}(?::(?!//)|%3A)))
    (?(quote)(?:\s|\\[nrt]){0,8}|(?:[ \t]|\\t){0,8})
    """,
    re.IGNORECASE | re.VERBOSE | re.ASCII,
)
_AFTER_NAME: Final = frozenset("=:%\\\"'`,>& \t\r\n")
_PAIR = re.compile(r"\\{0,8}[\"'`],\s{0,4}", re.ASCII)  # ('password', 'x')
_FLAG = re.compile(r"[\"']?,?[ \t]{1,4}(?!-)", re.ASCII)  # --password x, also within a list
_SPACE = re.compile(r"[ \t]{1,4}(?=[bEN]?\\{0,8}['\"])", re.ASCII)  # PASSWORD 'x'
_ELEMENT = re.compile(r"(?:[ \t][^<>]{0,100})?>(?=[^<\s])", re.ASCII)  # <password>x</password>
_MEMBER = re.compile(  # "name": "DB_PASSWORD", "value": "x"
    r"(?:\\{0,8}[\"'`])?(?:[\s,]|\\[nrt]){1,16}"
    r"\\{0,8}[\"'`]?value\\{0,8}[\"'`]?[ \t]{0,4}[=:][ \t]{0,4}",
    re.ASCII,
)
_BEFORE_PAIR = re.compile(r"\(b?\\{0,8}[\"'`][\w.-]{0,40}$", re.ASCII)
_BEFORE_FLAG = re.compile(r"--[\w-]{0,40}$", re.ASCII)
_BEFORE_QUERY = re.compile(r"(?:[?&;]|%26|%3F)$", re.IGNORECASE)

_OPENING = re.compile(
    r"(?:[A-Za-z_][\w.]{0,40}\()?[bruen]{0,2}(\\{0,8})([\"'`])", re.IGNORECASE | re.ASCII
)
_AFTER_VALUE = re.compile(r"[,}\])\n]|$")
_BRACKETS = re.compile(r"[\[\](){}]")
_SCHEME = re.compile(
    r"(?:bearer|basic|token|apikey|negotiate|ntlm)(?::|[ \t])[ \t]{0,4}(?:token=)?", re.IGNORECASE
)
_BLOCK = re.compile(r"[|>][+-]?[ \t]{0,4}(?:\r?\n|(?:\\r)?\\n)[ \t]{1,40}")  # of YAML
_WIDE_SCHEME = re.compile(r"(?:digest|aws4-[\w-]{1,30}|hmac[\w-]{0,30})[ \t]", re.IGNORECASE)
_LINE = re.compile(r"(?:(?!\\[rn])[^\r\n])*+")
# Up to the quote before the name, in one look: to the end of the line first would be quadratic.
_QUOTED_LINE = {
    quote: re.compile(rf"(?:[^\r\n\\{quote}]|\\(?![rn]){quote}?)*+") for quote in ("'", '"')
}
_RUN = re.compile(
    r"(?:[^\s&'\"`<>,;%]|(?<=\w)['\"](?=\w)|&(?![\w.%-]{1,64}(?:=|%3D)|$|\s|amp;)"
    r"|[,;](?![\w.-]{1,64}[=:])|%(?!26))++",
    re.ASCII,
)
_PLAIN: Final = frozenset(
    {
        *("none", "null", "nil", "true", "false", "undefined", "str", "bytes", "string"),
        *("required", "missing", "expected", "must", "is", "was", "not", "wrong", "invalid"),
        *("too", "field", "cannot", "should", "has", "may", "can", "does", "at", "no", "empty"),
        *("unset", "set", "option", "to", "type", "of", "syntax"),
    }
)
_LONGEST_LIST = 1_000
_MOST_BRACKETS = 16
_SHORTEST_KEY = 8


def _in_fields(text: str) -> str:
    lowered = text.replace("İ", "I").lower()  # the one letter whose lower case is longer
    starts: list[int] = []
    for stem in _STEMS:
        place = lowered.find(stem)
        while place >= 0:
            starts.append(place)
            place = lowered.find(stem, place + len(stem))
    if not starts:
        return text
    parts: list[str] = []
    done = 0
    for start in sorted(starts):
        if start < done or (name := _NAME.match(text, start)) is None:
            continue
        if text[name.end() : name.end() + 1] not in _AFTER_NAME:
            continue
        if text.endswith("nexpected ", 0, start):  # token of a grammar
            continue
        value = _value_of(text, name)
        if value is not None and value[0] < value[1]:
            parts += (text[done : value[0]], HIDDEN)
            done = value[1]
    parts.append(text[done:])
    return "".join(parts)


def _value_of(text: str, name: re.Match[str]) -> tuple[int, int] | None:
    """Where the secret of a field begins and ends; None if this is no field with a secret."""
    start, end, kind = name.start(), name.end(), name.lastgroup
    before = text[max(0, start - 48) : start]
    if kind == "key" and _KIND_OF_KEY.search(before):
        kind = "strong"
    elif kind == "bare" and before.endswith(("key-file-", "--")):
        kind = "command"
    separator = _SEPARATOR.match(text, end)
    if separator is None:
        is_field = kind in {"strong", "word", "command"}
        return _odd_value(text, end, before, is_command=kind == "command") if is_field else None
    is_prose = separator["equals"] is None and separator["quote"] is None
    at = separator.end()
    if kind == "key":  # `?key=…`, or a word of its own; but `monkey=3` and `{"key": 3}` are none
        if separator["quote"] or is_prose or name[0][-1] in "sS" or _is_within_word(before):
            return None
        value = _value_at(text, at)
        return value if _BEFORE_QUERY.search(before) or _may_be_key(text, value) else None
    is_path = name[0].lower() == "pwd" and text[at : at + 1] in {"/", "~"}
    if kind in {"bare", "header"} and (
        is_path or (is_prose and not before.endswith(("_", "-"))) or _is_within_word(before, kind)
    ):
        return None
    if not separator["quote"] and (found := _header_value(text, name, at, before)) is not None:
        return found
    return _value_at(text, at, is_prose=is_prose and kind == "word")


def _is_within_word(before: str, kind: str = "key") -> bool:
    last = before[-1:]
    is_separated = kind == "header" or before[-3:-2] == "%"  # %26pwd
    return not is_separated and (last.isalnum() or (kind == "key" and last in {"_", "-", "/"}))


def _may_be_key(text: str, value: tuple[int, int]) -> bool:
    shown = text[value[0] : value[1]]
    # <add key="Password" value="x"> names a secret.
    return len(shown) >= _SHORTEST_KEY and not shown.isdigit() and not is_secret_name(shown)


def _odd_value(text: str, end: int, before: str, *, is_command: bool) -> tuple[int, int] | None:
    """The value of `('password', 'x')`, `--password x`, `PASSWORD 'x'` and `<password>x`."""
    if found := _MEMBER.match(text, end):
        return _value_at(text, found.end())
    if is_command and (found := _FLAG.match(text, end)):
        return _value_at(text, found.end())
    for ahead, behind in ((_PAIR, _BEFORE_PAIR), (_FLAG, _BEFORE_FLAG), (_SPACE, None)):
        if (found := ahead.match(text, end)) and (behind is None or behind.search(before)):
            return _value_at(text, found.end())
    if (found := _ELEMENT.match(text, end)) and "<" in before:
        closing = text.find("<", found.end())
        return (found.end(), closing) if closing > 0 else None
    return None


def _header_value(text: str, name: re.Match[str], at: int, before: str) -> tuple[int, int] | None:
    """The value of `Cookie: …` and of `Authorization: Digest …`, up to the end of the line."""
    word = name[0].lower()
    is_wide = word.endswith("cookie") or (
        word.endswith("authorization") and _WIDE_SCHEME.match(text, at) is not None
    )
    if not is_wide:
        return None
    opening = before.rstrip("setproxySETPROXY-")[-1:]  # curl -H 'Cookie: …'
    line = _QUOTED_LINE.get(opening, _LINE).match(text, at)
    end = line.end() if line else at
    return at, at if text[at:end].strip().lower() in _PLAIN else end


def _value_at(text: str, at: int, *, is_prose: bool = False) -> tuple[int, int]:
    if scheme := _SCHEME.match(text, at):
        at, is_prose = scheme.end(), False
    if text.startswith(HIDDEN, at):
        return at, at
    if (opening := _OPENING.match(text, at)) is not None:
        return _quoted(text, at, opening)
    if text[at : at + 1] in {"[", "(", "{"}:
        return _bracketed(text, at)
    if (block := _BLOCK.match(text, at)) and (line := _LINE.match(text, block.end())):
        return line.span()
    run = _RUN.match(text, at)
    if run is None:
        return at, at
    value = run[0].rstrip(")]},;.:\\")
    is_plain = value.lower() in _PLAIN or (is_prose and value.isalpha() and value.islower())
    return at, at if is_plain else at + len(value)


def _quoted(text: str, at: int, opening: re.Match[str]) -> tuple[int, int]:
    """Within the quotes; all of it with the rest of the line, if they are not closed soon.

    Text within text has its quotes escaped, once more at each level: a closing one has as many
    backslashes before it as the opening one, not counting pairs.
    """
    depth, quote = len(opening[1]), opening[2]
    begin = place = opening.end()
    while (place := text.find(quote, place)) >= 0:
        slashes = place
        while slashes > begin and text[slashes - 1] == "\\":
            slashes -= 1
        count = place - slashes
        is_closing = count <= depth or (
            # An escaped backslash before it; or an escaped quote, in the repr of a text.
            (count - depth) % (2 * (depth + 1)) == 0 and _AFTER_VALUE.match(text, place + 1)
        )
        if is_closing:
            if text.count("\n", begin, place) > 2:  # noqa: PLR2004  an apostrophe further down
                break
            return begin, place - min(count, depth)
        place += 1
    line = _LINE.match(text, at)
    return at, line.end() if line else len(text)


def _bracketed(text: str, at: int) -> tuple[int, int]:
    """Within the brackets; all of it with the rest of the line, if they are not closed soon."""
    depth = 0
    for sign in islice(_BRACKETS.finditer(text, at, at + _LONGEST_LIST), _MOST_BRACKETS):
        depth += 1 if sign[0] in "[({" else -1
        if depth == 0:
            return at + 1, sign.start()
    line = _LINE.match(text, at)
    return at, line.end() if line else len(text)


# ---- in commands

_QUOTED_AUTH: Final = ("'auth'", "`auth`", '"auth"', '"auth\\')
_AUTH = re.compile(
    r"(?P<name>(?:(?<![\w-])AUTH2?|[\"'`](?i:auth)(?=\\{0,8}[\"'`]))(?:\\{0,8}[\"'`])?,?[ \t]{1,4}"
    r"b?(?:\\{0,8}[\"'`])?)(?P<first>[^\s'\"`,<>;:\\]+)"
    r"(?P<between>(?:\\{0,8}[\"'`])?,?[ \t]{1,4}b?(?:\\{0,8}[\"'`])?)?"
    r"(?P<second>(?(between)[^\s'\"`,<>;\\]+))?"
)
_ACL_PASSWORD = re.compile(r"(?<=[\s\"'])([>#])[^\s\"'>]+")
_PROGRAMS: Final = ("redis-cli", "valkey-cli", "sshpass", "curl")
_PROGRAM = re.compile(
    r"((?:\b(?:redis|valkey)-cli\b[^\n]{0,200}?[\s'\"]-a|\bsshpass\b['\",\s]{1,5}-p"
    r"|\bcurl\b[^\n]{0,200}?[\s'\"](?:-u|--user)['\",=\s]{1,5}[^\s:'\"]{1,64}:)['\",\s]{0,5})"
    r"[^\s'\",…]+",
    re.ASCII,
)
_PROSE: Final = frozenset(
    {
        *("failed", "fails", "error", "errors", "command", "called", "required", "is", "was"),
        *("with", "without", "and", "or", "for", "in", "to", "the", "a", "no", "not", "before"),
        *("by", "from", "on", "at", "of", "has", "had", "must", "needs", "again", "returned"),
        *("rejected", "refused", "reply", "response", "mechanism", "mechanisms", "only", "login"),
        *("plain", "xoauth2", "cram-md5", "setname", "keys"),
    }
)


def _in_auth(found: re.Match[str]) -> str:
    """The last of one or two arguments is the password."""
    first, second = found["first"], found["second"]
    has_second = bool(second) and second.lower() not in _PROSE
    if first.lower() in _PROSE and not (has_second and first.isupper()):
        return found[0]
    if has_second:
        return f"{found['name']}{first}{found['between']}{HIDDEN}"
    return f"{found['name']}{HIDDEN}{found['between'] or ''}{second or ''}"


# ---- all patterns, each with texts without one of which it finds nothing

_BEFORE_FIELDS: Final[tuple[_Rule, ...]] = (
    (("PRIVATE KEY",), _PEM, rf"\1{HIDDEN}\2"),
    (("://",), _ADDRESS, _in_address),
    (("host", "missing"), _MISREAD, rf"\1{HIDDEN}"),
    (("%3A%2F%2F", "%3a%2f%2f"), _ENCODED_ADDRESS, rf"\1{HIDDEN}\2"),
)
_AFTER_FIELDS: Final[tuple[_Rule, ...]] = (
    (("AUTH", *_QUOTED_AUTH), _AUTH, _in_auth),
    (("SETUSER", "setuser"), _ACL_PASSWORD, rf"\1{HIDDEN}"),
    (("earer ", "asic ", "EARER ", "ASIC "), _SCHEME_AND_TOKEN, _in_scheme),
    (_TOKEN_SIGNS, _TOKEN, _in_token),
    (_WEBHOOK_HOSTS, _WEBHOOK, rf"\1{HIDDEN}"),
    (_PROGRAMS, _PROGRAM, rf"\1{HIDDEN}"),
)
