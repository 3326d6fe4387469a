"""What is written for systemd and launchd."""

import plistlib
from pathlib import Path

from coffer_cli.commands import startup


def test_places() -> None:
    """Each system's own folder, moved where the user moved it."""
    home = Path("/h")
    assert startup.place("darwin", home, {}).file == Path("/h/Library/LaunchAgents/io.github.coffer.daemon.plist")
    linux = startup.place("linux", home, {"XDG_CONFIG_HOME": "relative"})
    assert linux.file == Path("/h/.config/systemd/user/coffer.service")
    assert startup.place("linux", home, {"XDG_CONFIG_HOME": "/x"}).file == Path("/x/systemd/user/coffer.service")


def test_a_unit_quotes_what_systemd_would_read_otherwise() -> None:
    """Blanks, quotes, specifiers and variables in a path stand for themselves."""
    made = startup.unit(["/a b/py", "%h", 'q"', "$X"], {"P": "a%b$c"})
    assert 'ExecStart="/a b/py" "%%h" "q\\"" "$$X"\n' in made
    assert 'Environment="P=a%%b$c"\n' in made


def test_an_agent_starts_at_login_and_after_a_crash() -> None:
    """launchd: started at login; started again unless it ended by itself."""
    found = plistlib.loads(startup.agent(["/py", "-m", "x"], {"A": "<b>"}).encode())
    assert found["ProgramArguments"] == ["/py", "-m", "x"]
    assert found["EnvironmentVariables"] == {"A": "<b>"}
    assert (found["RunAtLoad"], found["KeepAlive"]) == (True, {"SuccessfulExit": False})


def test_what_the_daemon_needs_of_this_shell_is_there_at_login_too() -> None:
    """Ports, certificates and proxies; not a proxy that holds a login, which is named."""
    env = {
        "PATH": "/bin",
        "COFFER_PORTS": "8100-8109",
        "SSL_CERT_FILE": "/c.pem",
        "HTTPS_PROXY": "http://me:secret@proxy:1",
        "no_proxy": "localhost",
        "OTHER": "x",
    }
    found, left = startup.surroundings(Path("/h"), env)
    assert found == {
        "COFFER_HOME": "/h",
        "PATH": "/bin",
        "COFFER_PORTS": "8100-8109",
        "SSL_CERT_FILE": "/c.pem",
        "no_proxy": "localhost",
    }
    assert left == ["HTTPS_PROXY"]
