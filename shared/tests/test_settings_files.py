"""Settings from files: a mounted folder with one file per variable."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from poolbench.errors import ConfigError
from poolbench.settings import ExtractorSettings, FolderSettings, PlaceSettings, S3Settings, SteererSettings
from poolbench.settings.base import refuse_unknown


@pytest.fixture(autouse=True)
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("POOLBENCH_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "secrets"
    folder.mkdir()
    monkeypatch.setenv("POOLBENCH_SECRETS", str(folder))
    return folder


def test_files_are_settings(secrets: Path) -> None:
    (secrets / "POOLBENCH_TOKEN").write_text("secret-token\n")
    (secrets / "POOLBENCH_BROKER").write_text("redis://:password@host:6379/0\n")
    (secrets / "POOLBENCH_S3_SECRET_KEY").write_text("  key \n")
    (secrets / "POOLBENCH_S3_ACCESS_KEY").write_text("\n")  # empty: unset
    (secrets / "POOLBENCH_TRUST_REMOTE_CODE").write_text("yes\n")
    (secrets / "POOLBENCH_MODEL_FOLDERS").write_text(f"/a{os.pathsep}/b")
    (secrets / "another-program").write_text("is ignored")
    place = PlaceSettings.load()
    assert place.token.get_secret_value() == "secret-token"
    assert place.broker.get_secret_value() == "redis://:password@host:6379/0"
    assert "secret" not in repr(place.token) and "password" not in repr(place)
    assert S3Settings.load().secret_key.get_secret_value() == "key" and not S3Settings.load().access_key
    assert ExtractorSettings.load().trust_remote_code is True
    assert FolderSettings.load().model_folders == (Path("/a"), Path("/b"))
    assert SteererSettings.load().model_fields_set == set()


def test_a_kubernetes_mount_with_links_is_read(secrets: Path) -> None:
    (secrets / "..data").mkdir()
    (secrets / "..data" / "POOLBENCH_TOKEN").write_text("mounted")
    (secrets / "POOLBENCH_TOKEN").symlink_to(secrets / "..data" / "POOLBENCH_TOKEN")
    assert PlaceSettings.load().token.get_secret_value() == "mounted"


def test_two_different_values_are_an_error_that_shows_neither(secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (secrets / "POOLBENCH_TOKEN").write_text("from-file")
    monkeypatch.setenv("POOLBENCH_TOKEN", "from-file")
    assert PlaceSettings.load().token.get_secret_value() == "from-file"
    monkeypatch.setenv("POOLBENCH_TOKEN", "from-environment")
    with pytest.raises(
        ConfigError, match=r"POOLBENCH_TOKEN is set in the environment, and a file .* keep one"
    ) as refused:
        PlaceSettings.load()
    assert "from-" not in str(refused.value)
    monkeypatch.setenv("POOLBENCH_TOKEN", "")  # empty: unset
    assert PlaceSettings.load().token.get_secret_value() == "from-file"


def test_an_unknown_file_is_refused_with_the_nearest_name(secrets: Path) -> None:
    (secrets / "POOLBENCH_TOKN").write_text("x")
    for load in (PlaceSettings.load, refuse_unknown):
        with pytest.raises(ConfigError, match="file of a secret 'POOLBENCH_TOKN'; did you mean POOLBENCH_TOKEN"):
            load()


def test_a_wrong_value_in_a_file_is_named(secrets: Path) -> None:
    (secrets / "POOLBENCH_HTTP_PORT").write_text("80000")
    with pytest.raises(ConfigError, match="POOLBENCH_HTTP_PORT is '80000'"):
        PlaceSettings.load()
    (secrets / "POOLBENCH_HTTP_PORT").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        PlaceSettings.load()


def test_a_folder_that_is_missing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POOLBENCH_SECRETS", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"POOLBENCH_SECRETS is .*none', which is not a folder that"):
        PlaceSettings.load()


def test_the_folder_of_docker_is_read_if_it_exists(secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POOLBENCH_SECRETS")
    monkeypatch.setattr("poolbench.settings.base.DEFAULT_FOLDER", secrets)
    (secrets / "POOLBENCH_TOKEN").write_text("mounted")
    assert PlaceSettings.load().token.get_secret_value() == "mounted"


@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="only root can start a process of another user")
def test_a_file_of_another_user_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        "import os; from poolbench.settings import PlaceSettings; os.setgid(65534); os.setuid(65534); "
        "print(PlaceSettings.load())"
    )
    with tempfile.TemporaryDirectory() as name:
        monkeypatch.setenv("POOLBENCH_SECRETS", str(Path(name) / "secrets"))
        file = Path(name, "secrets", "POOLBENCH_TOKEN")
        file.parent.mkdir()
        file.write_text("hidden-value")
        file.chmod(0o600)
        for mode, message in ((0o755, "let the user of this process read it"), (0o700, "that this process may enter")):
            Path(name).chmod(mode)
            done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
            assert "ConfigError" in done.stderr and message in done.stderr
            assert "hidden-value" not in done.stdout + done.stderr
