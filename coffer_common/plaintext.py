"""Finds values in a server's configuration that look like secrets, before they are written down.

Owns the rules, for the daemon that refuses and the command that imports, and the words of the refusal. Pure; never
repeats a value it looked at, not even a part of it.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from coffer_common.names import legal_server_name
from coffer_common.resources import HttpServer, McpServerConfig, OAuthClient

_TEMPLATE: Final = re.compile(r"\$\{[^}]*\}")
_KNOWN: Final = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"gh[pousr]_[A-Za-z0-9]{10,}|github_pat_[A-Za-z0-9_]{10,}|glpat-[A-Za-z0-9_-]{10,}"
    r"|sk-[A-Za-z0-9_-]{10,}|sk_live_[A-Za-z0-9]{10,}|rk_live_[A-Za-z0-9]{10,}"
    r"|xox[abeprs]-[A-Za-z0-9-]{8,}|xapp-[A-Za-z0-9-]{8,}|(?:AKIA|ASIA)[A-Z0-9]{12,}|AIza[A-Za-z0-9_-]{20,}"
    r"|npm_[A-Za-z0-9]{20,}|hf_[A-Za-z0-9]{20,}|pypi-[A-Za-z0-9_-]{20,}|ya29\.[A-Za-z0-9_-]{10,}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
_SCHEME: Final = re.compile(r"(?i)^(bearer|basic|token)\s+(\S{12,})$")
_SECRET_NAME: Final = re.compile(r"(?i)token|key|secret|passw|credential|auth|cookie")
_PASSWORD_NAME: Final = re.compile(r"(?i)(?:password|passwd|passphrase|secret)$")
_SECRET_HEADERS: Final = re.compile(r"(?i)^(?:authorization|proxy-authorization|cookie|.*api-?key|.*(?:token|secret))$")
_PLAIN: Final = re.compile(r"(?i)^(?:[/~.][^\s]*|[a-z]:\\.*|\d+|true|false|none|null)$")
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+")
_RANDOM_LENGTH: Final = 20
_RANDOM_BITS: Final = 3.0
_PASSWORD_LENGTH: Final = 6


@dataclass(frozen=True, slots=True)
class Finding:
    """``where``: in words for people. ``remedy``: the option that takes its place, with a reference in it."""

    where: str
    reference: str
    remedy: str


def find(server: str, config: McpServerConfig) -> list[Finding]:
    """What in the configuration of ``server`` looks like a secret; empty where nothing does."""
    if isinstance(config, HttpServer):
        return [*_in_headers(server, config.headers), *_in_url(server, config.url), *_in_oauth(server, config.oauth)]
    return [*_in_env(server, config.env), *_in_args(server, config.command, config.args)]


def refusal(findings: Sequence[Finding]) -> tuple[str, str]:
    """(message, hint) for a non-empty list of findings."""
    places = " and ".join(finding.where for finding in findings)
    verb = "holds" if len(findings) == 1 else "hold"
    lines: list[str] = []
    for finding in findings:
        lines += [f"store it:  coffer credential set {finding.reference}", f"then:      {finding.remedy}"]
    return f"{places} {verb} what looks like a secret.", "\n".join([*lines, "(or --allow-plaintext)"])


def _in_env(server: str, env: Mapping[str, str]) -> Iterator[Finding]:
    for name, value in env.items():
        if looks_secret(value, name):
            reference = credential_name(server, name)
            yield Finding(f"the environment variable {name}", reference, f"--env '{name}=${{{reference}}}'")


def _in_headers(server: str, headers: Mapping[str, str]) -> Iterator[Finding]:
    for name, value in headers.items():
        if secret_header(name, value):
            reference = credential_name(server, "token")
            scheme = re.match(r"(?i)(bearer|basic|token)\s+", value)
            wish = f"{scheme.group(0) if scheme else ''}${{{reference}}}"
            yield Finding(f"the header {name}", reference, f"--header '{name}={wish}'")


def secret_header(name: str, value: str) -> bool:
    """Whether the header ``name`` holds a secret, apart from what templates stand for."""
    literal = _TEMPLATE.sub("", value).strip()
    bare = re.sub(r"(?i)^(?:bearer|basic|token)\b\s*", "", literal)
    named = _SECRET_HEADERS.match(name) is not None and len(bare) >= _PASSWORD_LENGTH
    return named or looks_secret(value, name)


def _in_args(server: str, command: str, args: Sequence[str]) -> Iterator[Finding]:
    option = ""
    for number, word in enumerate((command, *args)):
        name, equals, value = word.partition("=")
        if word.startswith("-") and not equals:
            found = _KNOWN.search(word) is not None
        elif equals and re.fullmatch(r"-{0,2}[A-Za-z][\w.-]*", name):
            found = looks_secret(value, name)
        else:
            found = looks_secret(word, option)
        if found:
            reference = credential_name(server, "token")
            where = "the command" if number == 0 else f"argument {number}"
            yield Finding(
                f"{where} (every process of this machine can read it)",
                reference,
                f"--env 'VARIABLE=${{{reference}}}', if the server takes it from its environment",
            )
        option = word if word.startswith("-") and not equals else ""


def _in_url(server: str, url: str) -> Iterator[Finding]:
    reference = credential_name(server, "token")
    remedy = f"--header 'Authorization=Bearer ${{{reference}}}', or ${{{reference}}} in its place in the URL"
    literal = _TEMPLATE.sub("", url)
    try:
        parts = urlsplit(literal)
        password = parts.password
    except ValueError:
        return
    if password or (parts.username and _random(parts.username)):
        yield Finding("the URL's user part", reference, remedy)
    for name, value in parse_qsl(parts.query):
        named = _SECRET_NAME.search(name) is not None and len(value) >= _PASSWORD_LENGTH and not _PLAIN.match(value)
        if named or _KNOWN.search(value) or _random(value):
            yield Finding(f"the query value {name} of the URL", reference, remedy)
    if _KNOWN.search(parts.path):
        yield Finding("the path of the URL", reference, remedy)


def _in_oauth(server: str, oauth: OAuthClient) -> Iterator[Finding]:
    if _TEMPLATE.sub("", oauth.client_secret).strip():
        reference = credential_name(server, "oauth-secret")
        yield Finding("the OAuth client secret", reference, f"--oauth-client-secret '${{{reference}}}'")


def looks_secret(value: str, name: str) -> bool:
    """``value`` under a variable, header or option called ``name``; templates in it do not count."""
    literal = _TEMPLATE.sub("", value).strip()
    if not literal:
        return False
    if _KNOWN.search(literal) or _SCHEME.match(literal) or _url_password(literal):
        return True
    if _PLAIN.match(literal) or _URL.match(literal):
        return False
    if _PASSWORD_NAME.search(name) and len(literal) >= _PASSWORD_LENGTH:
        return True
    return _SECRET_NAME.search(name) is not None and _random(literal)


def _url_password(text: str) -> bool:
    for url in _URL.findall(text):
        try:
            if urlsplit(url).password:
                return True
        except ValueError:
            continue
    return False


def _random(text: str) -> bool:
    """Long, in one word, and no two characters follow from each other: Shannon's entropy of at least 3 bits."""
    if len(text) < _RANDOM_LENGTH or re.search(r"\s", text) or _PLAIN.match(text):
        return False
    counts = Counter(text)
    bits = -sum(count / len(text) * math.log2(count / len(text)) for count in counts.values())
    return bits >= _RANDOM_BITS and any(c.isdigit() for c in text)


def credential_name(server: str, name: str) -> str:
    """The credential that a secret of ``server`` called ``name`` is proposed to be stored as."""
    return legal_server_name(f"{server}-{name.replace('_', '-')}")
