"""The environment that an agent installs packages into lies on top of its Python."""

import subprocess
from pathlib import Path

from agent2rl.run.agent_python import find_own_python
from agent2rl.run.installed_packages import MANIFEST_BYTES, MOST_FOLDERS, list_workspace_packages
from agent2rl.run.package_overlay import SEEN_AT, PackageOverlay, can_use_apt

SHOW = """
import sys, pydantic, agent2rl, pip, small
print(sys.prefix != sys.base_prefix, sys.prefix, small.VALUE)
"""


def build_overlay(folder: Path) -> PackageOverlay:
    overlay = PackageOverlay.place_in(folder, find_own_python(), same_paths=True)
    overlay.build()
    return overlay


def find_site_packages(overlay: PackageOverlay) -> Path:
    (found,) = overlay.prefix.glob("lib/python3*/site-packages")
    return found


def test_it_has_the_packages_of_the_agents_python_and_its_own(tmp_path: Path) -> None:
    overlay = build_overlay(tmp_path)
    (find_site_packages(overlay) / "small.py").write_text("VALUE = 42\n")
    command = [str(overlay.interpreter), "-c", SHOW]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    assert shown.stdout.split() == ["True", str(overlay.prefix), "42"], shown.stderr
    pip = subprocess.run(
        [overlay.prefix / "bin" / "pip", "--version"], capture_output=True, text=True, check=False
    )
    assert pip.stdout.startswith("pip "), pip.stderr


def test_a_second_start_of_the_run_keeps_what_is_installed(tmp_path: Path) -> None:
    (find_site_packages(build_overlay(tmp_path)) / "small.py").write_text("VALUE = 42\n")
    assert (find_site_packages(build_overlay(tmp_path)) / "small.py").exists()


def test_in_a_sandbox_with_paths_of_its_own_no_path_of_this_computer_is_on_the_path(tmp_path: Path) -> None:
    overlay = PackageOverlay.place_in(tmp_path, find_own_python(), same_paths=False)
    python = overlay.make_sandbox_python()
    assert (str(python.bin), python.variables["VIRTUAL_ENV"]) == (f"{SEEN_AT}/bin", str(SEEN_AT))
    (mount,) = [each for each in overlay.list_mounts() if each.writable]
    assert (mount.source, mount.target) == (tmp_path / "python", str(SEEN_AT))


def test_installed_packages_are_read_from_names_alone(tmp_path: Path) -> None:
    overlay = build_overlay(tmp_path)
    site = find_site_packages(overlay)
    before = overlay.list_installed_packages()
    for name in (
        "Some_Package-1.2.3.dist-info",
        "torch-2.9.0+cpu.dist-info",
        "no-version",
        "x-1\n2.dist-info",
    ):
        (site / name).mkdir()
    (site / "torch-2.9.0+cpu.dist-info" / "METADATA").symlink_to("/dev/zero")
    new = overlay.list_installed_packages() - before
    assert new == {"some-package==1.2.3", "torch==2.9.0+cpu"}


def test_what_npm_installed_is_read_from_bounded_parts_of_its_files(tmp_path: Path) -> None:
    overlay = build_overlay(tmp_path)
    before = overlay.list_installed_packages()
    manifests = {
        "left-pad": '{"version": "1.3.0"}',
        "@scope/part": '{"version": "2.0.0-rc.1+a"}',
        "hostile": '{"version": "1\\n2"}',
        "broken": "{",
        "large": '{"version": "1", "x": "' + "x" * MANIFEST_BYTES + '"}',
    }
    for name, text in manifests.items():
        place = overlay.prefix / "lib" / "node_modules" / name
        place.mkdir(parents=True)
        (place / "package.json").write_text(text)
    linked = overlay.prefix / "lib" / "node_modules" / "linked"
    linked.mkdir()
    (linked / "package.json").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_text('{"version": "1"}')
    assert overlay.list_installed_packages() - before == {
        "npm:@scope/part==2.0.0-rc.1+a",
        "npm:broken==unknown",
        "npm:hostile==unknown",
        "npm:large==unknown",
        "npm:left-pad==1.3.0",
    }


def test_settings_of_apt_name_the_paths_of_the_sandbox_and_the_mirror(tmp_path: Path) -> None:
    overlay = PackageOverlay.place_in(tmp_path, find_own_python(), same_paths=False)
    overlay.build("https://mirror.example.org/debian")
    settings = Path(overlay.prefix, "etc/apt/apt.conf").read_text()
    assert overlay.make_client_variables()["APT_CONFIG"] == f"{SEEN_AT}/etc/apt/apt.conf"
    assert f'Dir::State "{SEEN_AT}/var/lib/apt";' in settings
    assert str(tmp_path) not in settings
    sources = Path(overlay.prefix, "etc/apt/sources.list.d/debian.sources").read_text()
    assert "URIs: https://mirror.example.org/debian\n" in sources
    assert "Signed-By: /usr/share/keyrings/" in sources


def test_a_link_in_place_of_the_package_directory_is_not_followed(tmp_path: Path) -> None:
    overlay = build_overlay(tmp_path)
    site, elsewhere = find_site_packages(overlay), tmp_path / "elsewhere"
    site.rename(elsewhere)
    (elsewhere / "secret-1.0.dist-info").mkdir()
    site.symlink_to(elsewhere)
    assert overlay.list_installed_packages() == set()


def test_apt_is_left_out_where_there_is_none_or_the_programs_are_an_images(tmp_path: Path) -> None:
    overlay = PackageOverlay.place_in(tmp_path, find_own_python(), same_paths=False)
    overlay.build(debian_url=None)
    assert "APT_CONFIG" not in overlay.make_client_variables()
    keyring = tmp_path / "keyring.gpg"
    assert not can_use_apt("bubblewrap", keyring)
    keyring.touch()
    assert can_use_apt("bubblewrap", keyring) == Path("/usr/bin/apt-get").exists()
    assert not can_use_apt("docker:python:3.12", keyring)


def test_the_certificates_of_this_computer_are_at_a_path_that_every_sandbox_shows(tmp_path: Path) -> None:
    """A sandbox with an image does not show /etc/ssl of this computer."""
    bundle = tmp_path / "bundle.crt"
    bundle.write_text("certificates")
    overlay = PackageOverlay.place_in(tmp_path, find_own_python(), same_paths=False)
    overlay.build(bundles=(tmp_path / "missing.crt", bundle))
    named = Path(overlay.make_client_variables()["SSL_CERT_FILE"])
    assert (overlay.prefix / named.relative_to(SEEN_AT)).read_text() == "certificates"
    assert overlay.make_client_variables()["PIP_CERT"] == str(named)


def test_without_certificates_on_this_computer_no_client_is_given_a_file_that_is_missing(
    tmp_path: Path,
) -> None:
    overlay = PackageOverlay.place_in(tmp_path, find_own_python(), same_paths=False)
    overlay.build(bundles=())
    assert "SSL_CERT_FILE" not in overlay.make_client_variables()


def test_packages_in_other_environments_of_the_workspace_are_read(tmp_path: Path) -> None:
    for folder in (
        "code/.venv/lib/python3.12/site-packages/trl-0.2.dist-info",
        "code/.venv/lib/python3.12/site-packages/trl/vendored-9.dist-info",
        "target/einops-0.8.1.dist-info",
        "env/conda-meta",
        "web/node_modules/left-pad",
        ".git/hidden-1.dist-info",
        "a/b/c/d/e/f/g/h/i/deep-1.dist-info",
    ):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "env/conda-meta/numpy-base-2.1.0-py312h2_0.json").touch()
    (tmp_path / "web/node_modules/left-pad/package.json").write_text('{"version": "1.3.0"}')
    (tmp_path / "file-1.dist-info").touch()
    (tmp_path / "outside").symlink_to("/")
    assert list_workspace_packages(tmp_path) == {
        *("trl==0.2", "einops==0.8.1", "conda:numpy-base==2.1.0", "npm:left-pad==1.3.0"),
    }


def test_a_workspace_of_many_folders_is_searched_in_part(tmp_path: Path) -> None:
    for number in range(MOST_FOLDERS):
        (tmp_path / f"{number:05}").mkdir()
    for name in ("00000", f"{MOST_FOLDERS - 1:05}"):
        (tmp_path / name / f"package-{name}.dist-info").mkdir()
    assert list_workspace_packages(tmp_path) == {"package==00000"}
    assert list_workspace_packages(tmp_path / "missing") == set()
