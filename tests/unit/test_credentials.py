"""The vault over real keyring backends, good and bad."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import keyring
import pytest
from keyring.backend import KeyringBackend
from keyring.backends import fail, null
from keyring.errors import KeyringLocked, NoKeyringError, PasswordSetError

from coffer_supervisor.credentials import CredentialError, CredentialVault, MissingCredential, references


class Memory(KeyringBackend):
    """Keeps what it is given."""

    priority = 1

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, username: str) -> str | None:
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.kept[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        del self.kept[service, username]


class Forgetful(Memory):
    """Accepts, and forgets."""

    def set_password(self, service: str, username: str, password: str) -> None:
        return None


class Truncating(Memory):
    """Accepts, and keeps half."""

    def set_password(self, service: str, username: str, password: str) -> None:
        super().set_password(service, username, password[: len(password) // 2])


class PlaintextFile(Memory):
    """Named as those are that encrypt nothing."""


class Raising(Memory):
    """Refuses everything with one error, whose text holds what must not be told."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def get_password(self, service: str, username: str) -> str | None:
        raise self.error

    def set_password(self, service: str, username: str, password: str) -> None:
        raise self.error


class Prompting(Memory):
    """Waits for a person until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()
        self.asked = 0

    def get_password(self, service: str, username: str) -> str | None:
        self.asked += 1
        self.released.wait(30)
        return super().get_password(service, username)


@pytest.fixture
def use() -> Iterator[Callable[[KeyringBackend], KeyringBackend]]:
    """Choose a backend through keyring's own switch; the one before is put back."""
    before = keyring.get_keyring()

    def choose(backend: KeyringBackend) -> KeyringBackend:
        keyring.set_keyring(backend)
        return backend

    yield choose
    keyring.set_keyring(before)


Use = Callable[[KeyringBackend], KeyringBackend]
SECRET = "s3cr3t-${github}-\\1-end"


async def test_a_secret_is_stored_read_and_removed(use: Use) -> None:
    """Secrets live in the keychain, under their reference."""
    use(Memory())
    vault = CredentialVault()
    assert await vault.get("github") is None
    await vault.set("github", SECRET)
    assert await vault.get("github") == SECRET
    assert await vault.delete("github") is True
    assert await vault.delete("github") is False
    assert await vault.get("github") is None


async def test_templates_are_filled_once(use: Use) -> None:
    """``${ref}`` only; a secret that looks like a template or a pattern stays as it is."""
    use(Memory())
    vault = CredentialVault()
    await vault.set("github", SECRET)
    await vault.set("other_1", "o")
    assert await vault.resolve("Bearer ${github}") == f"Bearer {SECRET}"
    assert await vault.resolve("${other_1}:${github}:${other_1}") == f"o:{SECRET}:o"
    for plain in ("", "no reference", "$HOME", "a $ b", "{github}", "$$"):
        assert await vault.resolve(plain) == plain


@pytest.mark.parametrize(
    ("template", "reference", "told"),
    [
        ("Bearer ${absent}", "absent", "coffer credential set absent"),
        ("${MISSING}", "MISSING", "no environment variables"),
        ("${VAR:-d}", "VAR:-d", "no defaults"),
        ("${}", "", "Only ${name}"),
        ("x${github", "", "Only ${name}"),
        ("${a b}", "a b", "Only ${name}"),
    ],
)
async def test_an_unresolved_reference_is_never_sent(template: str, reference: str, told: str, use: Use) -> None:
    """K06: a reference that is not stored, or is none, names itself, its place and the remedy."""
    use(Memory())
    with pytest.raises(MissingCredential) as raised:
        await CredentialVault().resolve(template, where="env TOKEN of server github")
    assert raised.value.reference == reference
    assert raised.value.code == "missing_credential"
    assert "env TOKEN of server github" in raised.value.message
    assert told in raised.value.hint


async def test_a_template_left_open_is_no_reference(use: Use) -> None:
    """``${github`` without its end is refused even where ``github`` is stored."""
    use(Memory())
    vault = CredentialVault()
    await vault.set("github", SECRET)
    with pytest.raises(MissingCredential):
        await vault.resolve("x${github")


def test_references_are_listed_in_order() -> None:
    """What a template needs is known without asking the keychain."""
    assert references("${b} ${a} ${b}") == ["b", "a"]
    assert references("none") == []


@pytest.mark.parametrize("backend", [Forgetful, Truncating])
async def test_a_secret_that_does_not_come_back_is_not_stored(backend: type[Memory], use: Use) -> None:
    """K07: a backend that accepts and forgets; every write is read back."""
    use(backend())
    with pytest.raises(CredentialError) as raised:
        await CredentialVault().set("github", SECRET)
    assert raised.value.code == "keychain_forgets"
    assert "coffer credential use-file" in raised.value.hint
    assert "s3cr3t" not in str(raised.value)


@pytest.mark.parametrize(
    ("backend", "code"),
    [
        (fail.Keyring(), "no_keychain"),
        (null.Keyring(), "no_keychain"),
        (PlaintextFile(), "plaintext_keychain"),
        (Raising(NoKeyringError("nothing")), "no_keychain"),
        (Raising(KeyringLocked(SECRET)), "keychain_locked"),
        (Raising(PasswordSetError(SECRET)), "keychain_failed"),
        (Raising(OSError(SECRET)), "keychain_failed"),
    ],
)
async def test_no_usable_keychain_names_the_next_step(backend: KeyringBackend, code: str, use: Use) -> None:
    """K07: no keychain, a locked one, one that raises, one in plain text: refused with the exact next step."""
    use(backend)
    vault = CredentialVault()
    for question in (vault.set("github", SECRET), vault.get("github"), vault.resolve("${github}")):
        with pytest.raises(CredentialError) as raised:
            await question
        assert raised.value.code == code
        assert "coffer credential use-file" in raised.value.hint
        assert "s3cr3t" not in str(raised.value)
        assert raised.value.__cause__ is None


async def test_a_keychain_that_prompts_is_waited_for_within_a_bound(use: Use) -> None:
    """K07: a backend that blocks; later questions do not pile up behind it, and it is well again once it answers."""
    backend = Prompting()
    use(backend)
    vault = CredentialVault(seconds=0.05)
    for told in ("did not answer", "still has not answered"):
        with pytest.raises(CredentialError, match=told) as raised:
            await vault.get("github")
        assert raised.value.code == "keychain_silent"
    assert backend.asked == 1
    pending = vault._unanswered
    assert pending is not None
    backend.released.set()
    await pending
    assert await CredentialVault(seconds=10).get("github") is None
    assert await vault.get("github") is None


@pytest.mark.parametrize(("reference", "secret"), [("Github", "x"), ("a b", "x"), ("", "x"), ("github", "")])
async def test_what_could_not_be_referred_to_is_not_stored(reference: str, secret: str, use: Use) -> None:
    """A name that no template could use, and an empty secret, are refused before the keychain is asked."""
    use(Raising(AssertionError("asked")))
    with pytest.raises(CredentialError) as raised:
        await CredentialVault().set(reference, secret)
    assert raised.value.code in {"invalid_name", "empty_secret"}


def test_the_keychain_is_loaded_only_for_a_secret() -> None:
    """A daemon without secrets never loads keyring; keyring's own configuration chooses the backend."""
    script = (
        "import asyncio, sys\n"
        "from coffer_supervisor.credentials import CredentialVault\n"
        "vault = CredentialVault()\n"
        "assert asyncio.run(vault.resolve('plain')) == 'plain'\n"
        "assert 'keyring' not in sys.modules\n"
        "asyncio.run(CredentialVault().set('github', 'x'))\n"
        "import keyring\n"
        "assert type(keyring.get_keyring()).__name__ == 'Memory'\n"
    )
    env = {**os.environ, "PYTHON_KEYRING_BACKEND": "tests.unit.test_credentials.Memory"}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_prompt_that_hangs_does_not_hold_up_the_end(use: Use) -> None:
    """The loop may end while the keychain still waits for a person; the late answer harms nobody."""
    import asyncio

    backend = Prompting()
    use(backend)

    async def ask() -> None:
        with pytest.raises(CredentialError):
            await CredentialVault(seconds=0.05).get("github")

    asyncio.run(ask())
    before = [thread for thread in threading.enumerate() if thread.name == "keychain"]
    assert before
    assert all(thread.daemon for thread in before)
    backend.released.set()
    for thread in before:
        thread.join(10)
        assert not thread.is_alive()
