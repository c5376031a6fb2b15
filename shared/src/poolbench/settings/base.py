"""Settings from environment variables: one model per group, and a refusal of undeclared names."""

import os
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from poolbench.errors import ConfigError, shown, unknown_name_message

PREFIX = "POOLBENCH_"
#: The variable that names the folder. It is read before any other setting.
FOLDER_VARIABLE = f"{PREFIX}SECRETS"
#: Where Docker mounts secrets.
DEFAULT_FOLDER = Path("/run/secrets")
_BOOLEANS = "use true, 1, yes or on, or their opposites false, 0, no or off"


def read_files() -> dict[str, str]:
    """Return the stripped content of each PoolBench file in the folder of secrets, by the name of its variable.

    Raises:
        ConfigError: The named folder does not exist, or a file in it cannot be read.
    """
    folder = _folder()
    if folder is None:
        return {}
    try:
        files = [file for file in folder.iterdir() if file.name.upper().startswith(PREFIX) and file.is_file()]
    except OSError as error:
        remedy = f"let the user of this process read it, or name another folder in {FOLDER_VARIABLE}"
        raise ConfigError(f"the folder of secrets {folder} cannot be read ({error.strerror}): {remedy}") from None
    return {file.name: _content(file) for file in files}


def _folder() -> Path | None:
    if not (name := os.environ.get(FOLDER_VARIABLE)):
        return DEFAULT_FOLDER if os.path.isdir(DEFAULT_FOLDER) else None
    folder = Path(name).expanduser()
    if not os.path.isdir(folder):  # the method of Path raises an error below a folder that may not be entered
        raise ConfigError(
            f"{FOLDER_VARIABLE} is {name!r}, which is not a folder that this process may enter: name the folder with "
            "one file per secret, or unset it"
        )
    return folder


def _content(file: Path) -> str:
    try:
        return file.read_text("utf-8").strip()
    except OSError as error:
        raise ConfigError(
            f"secret {file} cannot be read ({error.strerror}): let the user of this process read it"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"secret {file} is not UTF-8 text: write the value of the variable as text") from None


class SettingsConfigDict(ConfigDict, total=False):
    """Pydantic's configuration of a settings model, with the prefix of the names of its variables."""

    env_prefix: str


class Settings(BaseModel):
    """Settings of a deployment.

    Each field is the environment variable `<prefix><FIELD>`, or a file of that name in the folder of secrets. A
    variable or file that is empty counts as unset. Subclasses register themselves: their variables are the ones that
    may be set, and the site of the documentation lists them.
    """

    # A process reads few of the models, and building all of them takes a tenth of a second.
    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="forbid", populate_by_name=True, validate_default=True, defer_build=True
    )
    models: "ClassVar[list[type[Settings]]]" = []

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        Settings.models.append(cls)

    def __init__(self, **values: Any) -> None:
        """Take values by the names of fields; all others are read. Raise ValidationError or ConfigError."""
        variables = {field: self.variable(field) for field in type(self).model_fields if field not in values}
        files = read_files()
        read = {field: os.environ.get(name) or files.get(name) for field, name in variables.items()}
        super().__init__(**values, **{field: value for field, value in read.items() if value})

    @classmethod
    def load(cls) -> Self:
        """Read the settings from the environment of this process and its folder of secrets.

        Raises:
            ConfigError: A variable is unknown, its value is not allowed, or a file has another value. The message
                contains no secrets.
        """
        wrong: list[str] = []
        try:
            settings = cls()
        except ValidationError as error:
            wrong = [cls._explain(issue) for issue in error.errors()]
        _refuse([*wrong, *_unknown()])
        return settings

    @classmethod
    def variable(cls, field: str) -> str:
        """Return the name of the environment variable of a field."""
        alias = cls.model_fields[field].validation_alias
        return alias if isinstance(alias, str) else f"{cls.model_config['env_prefix']}{field.upper()}"

    @classmethod
    def _explain(cls, issue: Any) -> str:
        """Say what is wrong with one variable: its name, what was received, and what is allowed."""
        names = {cls.variable(field).lower(): field for field in cls.model_fields}
        place = str(issue["loc"][0])
        field = place if place in cls.model_fields else names[place.lower()]
        field_info = cls.model_fields[field]
        received = "" if field_info.annotation is SecretStr else f" is {shown(issue['input'])}"
        rule = _BOOLEANS if issue["type"].startswith("bool") else issue["msg"]
        return f"{cls.variable(field)}{received}: {rule} ({field_info.description})"


def setting(default: Any, meaning: str, *, unset: str = "", **bounds: Any) -> Any:
    """Declare a field of `Settings`. `bounds` are further arguments of `pydantic.Field`.

    Args:
        default: Value if the variable is not set.
        meaning: Meaning of the setting, for the documentation and for error messages.
        unset: Behaviour if the variable is not set, unless the default already says so.
    """
    return Field(default, description=meaning, json_schema_extra={"unset": unset} if unset else None, **bounds)


def refuse_unknown() -> None:
    """Raise ConfigError for variables that start like ours but belong to no setting."""
    _refuse(_unknown())


def _unknown() -> list[str]:
    """Return what is wrong with names: unknown variables and files, and those with two different values."""
    variables = {model.variable(field) for model in Settings.models for field in model.model_fields}
    files = read_files()
    names = sorted(name for name in os.environ if name.upper().startswith(PREFIX) and name not in variables)
    problems = [unknown_name_message("environment variable", name, variables) for name in names]
    problems += [unknown_name_message("file of a secret", name, variables) for name in sorted(files.keys() - variables)]
    doubled = (name for name in sorted(files.keys() & os.environ.keys()) if files[name] and os.environ[name])
    problems += [
        f"{name} is set in the environment, and a file in the folder of secrets has another value: keep one of them"
        for name in doubled
        if files[name] != os.environ[name]
    ]
    return problems


def _refuse(problems: list[str]) -> None:
    if problems:
        raise ConfigError(f"{'; '.join(problems)}; correct or unset it: see docs/operations/settings.md")
