"""The recipe of our images and the compose file, read by a linter and by us: nothing runs them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from firebird_cdc.config import load_config

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "packaging/container/Dockerfile"
COMPOSE = RECIPE.with_name("compose.yaml")


def test_linter_has_nothing_to_say_about_the_recipe() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, RECIPE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_all_that_recipe_and_compose_file_name_is_there() -> None:
    recipe = RECIPE.read_text()
    for copied in re.findall(r"^COPY ([^-\s]\S*)", recipe, re.MULTILINE):
        assert (ROOT / copied).exists(), copied
    compose = yaml.safe_load(COMPOSE.read_text())
    services, volumes = compose["services"], compose["volumes"]
    for service in services.values():
        if build := service.get("build"):
            context = COMPOSE.parent / build["context"]
            assert (context / build["dockerfile"]).samefile(RECIPE)
            assert f" AS {build['target']}\n" in recipe
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            known = (COMPOSE.parent / source).is_file() if "/" in source else source in volumes
            assert known, volume
        assert set(service.get("depends_on", ())) <= set(services)


def test_options_of_the_demonstration_load(monkeypatch: pytest.MonkeyPatch) -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    for name, value in services["shipper"]["environment"].items():
        monkeypatch.setenv(name, value)
    options = load_config(COMPOSE.with_name("reddatabase.connector.yaml"))
    assert options.warnings == ()
    broker = services["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert options.producer["bootstrap.servers"] == broker.removeprefix("PLAINTEXT://")
    # Both containers have the journals at one place, and one user group writes them.
    folder = options.journal_directory.parent
    for each in ("server", "shipper"):
        assert f"journals:{folder}" in services[each]["volumes"]
