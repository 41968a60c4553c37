"""Bundles of user code: what goes in, and what is refused when it comes out."""

from __future__ import annotations

import errno
import gzip
import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from appliance.bundle import (
    BundleError,
    BundleTooLarge,
    InvalidBundle,
    Limits,
    check_bundle,
    make_bundle,
    unpack_bundle,
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with everything that people have beside their code."""
    root = tmp_path / "project"
    for name, content in {
        "experiment.py": "import helpers.data\n",
        "helpers/data.py": "ROWS = 3\n",
        "ü ß.txt": "grüße\n",
        ".env": "SECRET=1\n",
        ".git/config": "[core]\n",
        "__pycache__/experiment.cpython-311.pyc": "x",
        "env/pyvenv.cfg": "home = /usr\n",
        "env/lib/module.py": "",
        "node_modules/left/pad.js": "",
        "data.csv": "1,2\n" * 1000,
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def archive_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def test_bundle_holds_the_code_and_leaves_out_what_is_not(project: Path, tmp_path: Path) -> None:
    """Hidden files (secrets), caches, virtual environments and large files stay at home."""
    outside = tmp_path / "outside.py"
    outside.write_text("")
    (project / "outside.py").symlink_to(outside)
    (project / "inside.py").symlink_to(project / "experiment.py")
    os.mkfifo(project / "pipe")
    bundle = make_bundle(project / "experiment.py", Limits(file_bytes=1000))
    assert bundle.entry == "experiment.py"
    assert bundle.files == ("experiment.py", "helpers/data.py", "inside.py", "ü ß.txt")
    assert bundle.skipped == (
        ("data.csv", "4 KB, over the limit of 1000 bytes a file"),
        ("outside.py", "a link that leaves the folder"),
    )
    archive = tmp_path / "bundle.tar.gz"
    archive.write_bytes(bundle.data)
    assert check_bundle(archive, "experiment.py") == bundle.files
    unpack_bundle(archive, tmp_path / "code")
    assert (tmp_path / "code/ü ß.txt").read_text() == "grüße\n"
    assert (tmp_path / "code/inside.py").read_text() == "import helpers.data\n"
    with pytest.raises(FileExistsError, match="it exists"):
        unpack_bundle(archive, tmp_path / "code")


def test_same_files_give_the_same_bytes(project: Path) -> None:
    first = make_bundle(project / "experiment.py")
    os.utime(project / "experiment.py", (1, 1))
    assert make_bundle(project / "experiment.py").data == first.data
    (project / "helpers/data.py").write_text("ROWS = 4\n")
    assert make_bundle(project / "experiment.py").data != first.data


def test_bundle_records_the_git_commit_and_whether_the_folder_differs(project: Path) -> None:
    assert make_bundle(project / "experiment.py").source_revision == ""
    (project / ".git/config").unlink()
    (project / ".git").rmdir()
    git = ["git", "-C", str(project), "-c", "user.name=n", "-c", "user.email=e@example.com"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "experiment.py"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "first"], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout
    assert make_bundle(project / "experiment.py").source_revision == f"{commit.strip()}-dirty"
    (project / ".gitignore").write_text("*\n")
    assert make_bundle(project / "experiment.py").source_revision == commit.strip()


def test_making_refuses_what_cannot_be_a_bundle(project: Path) -> None:
    with pytest.raises(BundleError, match=r"Cannot bundle '.*absent.py': there is no such file"):
        make_bundle(project / "absent.py")
    with pytest.raises(BundleError, match="hidden files are left out"):
        make_bundle(project / ".env")
    with pytest.raises(BundleTooLarge, match=r"data.csv': 4 KB, over the limit of 1000 bytes"):
        make_bundle(project / "data.csv", Limits(file_bytes=1000))
    with pytest.raises(BundleTooLarge, match=r"more than 1000 bytes or 10,000 files \(stopped at 'data.csv'"):
        make_bundle(project / "experiment.py", Limits(total_bytes=1000))
    with pytest.raises(BundleTooLarge, match="3 files"):
        make_bundle(project / "experiment.py", Limits(files=3))


HOSTILE = {
    "absolute path": (archive_of((member("/etc/evil"), b"x")), InvalidBundle, "'/etc/evil', which leads out"),
    "parent folder": (archive_of((member("a/../../evil"), b"x")), InvalidBundle, "which leads out of it"),
    "symbolic link": (
        archive_of((member("a", tarfile.SYMTYPE, "/etc"), b""), (member("a/passwd"), b"x")),
        InvalidBundle,
        "'a', which is neither a plain file nor a folder",
    ),
    "hard link": (
        archive_of((member("a", tarfile.LNKTYPE, "/etc/passwd"), b"")),
        InvalidBundle,
        "neither a plain file",
    ),
    "device": (archive_of((member("a", tarfile.CHRTYPE), b"")), InvalidBundle, "neither a plain file"),
    "pipe": (archive_of((member("a", tarfile.FIFOTYPE), b"")), InvalidBundle, "neither a plain file"),
    "one name twice": (
        archive_of((member("a"), b"1"), (member("./a"), b"2")),
        InvalidBundle,
        r"Cannot unpack '\./a' of the bundle: File exists",
    ),
    "file used as a folder": (
        archive_of((member("a"), b"1"), (member("a/b"), b"2")),
        InvalidBundle,
        "Cannot unpack 'a/b'",
    ),
    "name longer than the disk takes": (
        archive_of((member("n" * 300), b"1")),
        InvalidBundle,
        "a name longer than 255 bytes",
    ),
    "not an archive": (b"import os\n", InvalidBundle, "not a whole tar.gz archive"),
    "gzip of something else": (gzip.compress(b"import os\n" * 100), InvalidBundle, "not a whole tar.gz"),
    "a zip file": (b"PK\x03\x04" + bytes(2000), InvalidBundle, "not a whole tar.gz"),
    "empty upload": (b"", InvalidBundle, "not a whole tar.gz"),
    "no members": (archive_of(), InvalidBundle, "is empty"),
    "cut off": (
        archive_of((member("a"), os.urandom(50_000)))[:30_000],
        InvalidBundle,
        "not a whole tar.gz",
    ),
    "large file": (
        archive_of((member("a"), bytes(200_000))),
        BundleTooLarge,
        "'a' of 195 KB; the limit is 98 KB",
    ),
    "large in total": (
        archive_of(*((member(str(i)), bytes(90_000)) for i in range(9))),
        BundleTooLarge,
        "more than 488 KB",
    ),
    "many files": (
        archive_of(*((member(str(i)), b"") for i in range(40))),
        BundleTooLarge,
        "or 30 files",
    ),
    "many folders": (
        archive_of(*((member(str(i), tarfile.DIRTYPE), b"") for i in range(40))),
        BundleTooLarge,
        "or 30 files",
    ),
    "large header": (
        archive_of((member("n" * 2_000_000), b"")),
        BundleTooLarge,
        "unpacks to more than",
    ),
}
SMALL = Limits(file_bytes=100_000, total_bytes=500_000, files=30)


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_archive_is_refused_and_leaves_nothing(case: str, tmp_path: Path) -> None:
    data, error, message = HOSTILE[case]
    archive = tmp_path / "bundle.tar.gz"
    archive.write_bytes(data)
    with pytest.raises(error, match=message):
        unpack_bundle(archive, tmp_path / "jobs/code", SMALL)
    assert list((tmp_path / "jobs").iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle.tar.gz", "jobs"]


@pytest.mark.parametrize("case", [case for case in HOSTILE if "Cannot unpack" not in HOSTILE[case][2]])
def test_check_refuses_without_unpacking(case: str, tmp_path: Path) -> None:
    """The edge refuses a bad upload at once, rather than the worker later."""
    data, error, message = HOSTILE[case]
    archive = tmp_path / "bundle.tar.gz"
    archive.write_bytes(data)
    with pytest.raises(error, match=message):
        check_bundle(archive, "a", SMALL)


def test_check_finds_a_name_that_is_there_twice(tmp_path: Path) -> None:
    archive = tmp_path / "bundle.tar.gz"
    archive.write_bytes(archive_of((member("a"), b"1"), (member("./a"), b"2")))
    with pytest.raises(InvalidBundle, match="holds 'a' twice"):
        check_bundle(archive, "a", SMALL)


def test_full_disk_is_no_fault_of_the_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    archive = tmp_path / "bundle.tar.gz"
    archive.write_bytes(archive_of((member("a"), b"1")))
    monkeypatch.setattr("appliance.bundle._copy", fill)
    with pytest.raises(OSError, match="No space left on device"):
        unpack_bundle(archive, tmp_path / "jobs/code", SMALL)
    assert list((tmp_path / "jobs").iterdir()) == []


def test_check_names_the_missing_entry(project: Path, tmp_path: Path) -> None:
    archive = tmp_path / "bundle.tar.gz"
    archive.write_bytes(make_bundle(project / "experiment.py").data)
    with pytest.raises(
        InvalidBundle, match=r"no file 'train.py'; it holds: data.csv, experiment.py, helpers"
    ):
        check_bundle(archive, "train.py")
