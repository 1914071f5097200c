"""What is handed on: the wheel, and the archive of the source."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    return folder


def test_the_wheel_says_what_it_is(built: Path) -> None:
    [path] = built.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        [name] = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = message_from_bytes(wheel.read(name))
        parts = {each.partition("/")[0] for each in wheel.namelist()}
        [licence] = (name for name in wheel.namelist() if name.endswith("/licenses/LICENSE"))
        assert wheel.read(licence) == (ROOT / "LICENSE").read_bytes()
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert bytes(metadata.get_payload(decode=True)).decode().strip() == README.strip()
    assert parts == {"oncekey", name.partition("/")[0]}


def test_the_wheel_has_every_file_of_the_package_and_no_simulator(built: Path) -> None:
    [path] = built.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    source = ROOT / "src"
    files = {
        str(file.relative_to(source))
        for file in (source / "oncekey").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert names == files
    assert {Path(name).suffix for name in files} >= {".sql", ".lua", ".typed", ".py"}
    assert [name for name in files if "simulat" in name] == ["oncekey/testing/simulate.py"]


def test_its_licence_is_named_as_tools_read_it(built: Path) -> None:
    """A classifier beside the expression would make the package invalid (PEP 639)."""
    [path] = built.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        [name] = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = message_from_bytes(wheel.read(name))
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert not [each for each in metadata.get_all("Classifier", []) if "License" in each]
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License\n" in text
    assert "Version 2.0, January 2004" in text
    assert "Copyright 2026 the oncekey authors" in text


def test_the_source_has_all_that_its_readme_leads_to(built: Path) -> None:
    [path] = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    leads = {link.partition("#")[0] for link in re.findall(r"\]\(([^):]+)\)", README)} - {""}
    assert "docs/promises.md" in leads
    assert "LICENSE" in leads
    assert leads <= held
    assert not [name for name in held if name.startswith(("simulator", "src/payments", "tests"))]
