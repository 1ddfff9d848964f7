"""Where the cache and the configuration are, under every environment a nightly job may run in."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ticket_etl.errors import ModelError
from ticket_etl.models import cache_dir, places, user_config_path


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """Set a fresh HOME and no variable that would win over it."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in ("TICKET_ETL_CACHE", "TICKET_ETL_CONFIG_HOME"):
        monkeypatch.delenv(name)
    return home


@pytest.fixture
def no_home(home, monkeypatch):
    """Take HOME away, and the password database's answer too."""

    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(Path, "home", nobody)


def test_own_variable_wins_over_xdg_and_home(home, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("TICKET_ETL_CACHE", str(tmp_path / "own"))
    assert cache_dir() == tmp_path / "own"
    monkeypatch.delenv("TICKET_ETL_CACHE")
    assert cache_dir() == tmp_path / "xdg" / "ticket-etl"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == home / ".cache" / "ticket-etl"


def test_relative_own_variable_means_the_working_folder_and_relative_xdg_nothing(home, monkeypatch):
    monkeypatch.setenv("TICKET_ETL_CACHE", "here")
    assert cache_dir() == Path.cwd() / "here"
    monkeypatch.delenv("TICKET_ETL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    assert cache_dir() == home / ".cache" / "ticket-etl"


def test_asking_creates_nothing(home):
    cache_dir()
    user_config_path()
    assert list(home.iterdir()) == []


def test_without_home_the_cache_is_the_users_own_temporary_folder(no_home, tmp_path):
    assert cache_dir() == tmp_path / f"ticket-etl-{os.getuid()}"
    assert places.writable_cache() == cache_dir()
    assert cache_dir().stat().st_mode & 0o777 == 0o700
    assert user_config_path() == cache_dir() / "config.toml"


def test_home_that_takes_no_files_gives_way_to_the_temporary_folder(home, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/proc/nowhere")
    monkeypatch.setattr(places.os, "access", lambda path, mode: not str(path).startswith("/proc"))
    assert cache_dir() == tmp_path / f"ticket-etl-{os.getuid()}"


def test_home_that_is_a_file_gives_way_too(home, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    assert cache_dir() == tmp_path / f"ticket-etl-{os.getuid()}"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_home_of_somebody_else_gives_way_to_the_own_temporary_folder(tmp_path):
    """As under `sudo -u` or a scheduler that keeps root's HOME: the home is there, but closed."""
    closed = tmp_path / "home"
    (closed / ".cache" / "ticket-etl").mkdir(parents=True)
    (closed / ".config" / "ticket-etl").mkdir(parents=True)
    closed.chmod(0o700)
    code = (
        "import os; import ticket_etl.models as m; from ticket_etl.models import places; os.setuid(65534);"
        "print(m.cache_dir(), m.user_config_path().parent, m.default_model(), len(m.list_models()))"
    )
    env = {"HOME": str(closed), "PYTHONPATH": str(Path.cwd()), "TMPDIR": "/tmp"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.split() == ["/tmp/ticket-etl-65534", "/tmp/ticket-etl-65534", "smollm2", "3"]


def test_cache_in_the_home_does_not_need_a_temporary_folder(home, monkeypatch):
    def nowhere() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", nowhere)
    assert places.cache_dirs_to_read() == [home / ".cache" / "ticket-etl"]


def test_read_only_default_cache_is_read_first_and_never_written(home, monkeypatch, tmp_path):
    default, temporary = home / ".cache" / "ticket-etl", tmp_path / f"ticket-etl-{os.getuid()}"
    default.mkdir(parents=True)
    real = os.access
    monkeypatch.setattr(
        places.os, "access", lambda path, mode: real(path, mode) and not (path == default and mode & os.W_OK)
    )
    assert cache_dir() == default
    assert places.writable_cache() == temporary
    assert places.cache_dirs_to_read() == [default, temporary]


def test_read_only_cache_that_was_named_is_an_error_with_the_way_out(monkeypatch, tmp_path):
    named = tmp_path / "cache"
    named.mkdir()
    monkeypatch.setattr(places.os, "access", lambda path, mode: not mode & os.W_OK)
    with pytest.raises(ModelError, match=r"cannot write .*cache \(read-only\); set TICKET_ETL_CACHE"):
        places.writable_cache()


def test_cache_below_a_file_is_an_error_with_the_way_out(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TICKET_ETL_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelError, match=r"Not a directory.*; set TICKET_ETL_CACHE"):
        places.writable_cache()


def test_temporary_folder_that_somebody_else_prepared_is_refused(no_home, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"ticket-etl-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ModelError, match="belongs to somebody else"):
        cache_dir()


def test_full_disk_is_told_before_the_work(tmp_path):
    with pytest.raises(ModelError, match=r"the model needs \d+ MB in .* left; free some"):
        places.need_space(tmp_path, 10**18, "the model")


def test_configuration_follows_own_variable_then_xdg_then_home(home, monkeypatch, tmp_path):
    assert user_config_path() == home / ".config" / "ticket-etl" / "config.toml"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    assert user_config_path() == tmp_path / "xdg" / "ticket-etl" / "config.toml"
    monkeypatch.setenv("TICKET_ETL_CONFIG_HOME", str(tmp_path / "own"))
    assert user_config_path() == tmp_path / "own" / "config.toml"


def test_bare_environment_finds_a_cache_without_importing_torch():
    """Cron gives neither HOME nor a UTF-8 locale; looking names up must stay cheap there."""
    code = (
        "import sys, ticket_etl.models as m; print(m.cache_dir(), len(m.list_models()));"
        "print(*{'torch', 'transformers', 'huggingface_hub'} & set(sys.modules))"
    )
    env = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    where, imported = done.stdout.splitlines()
    assert where.startswith("/")
    assert imported == ""
