"""The public names of the library, and what importing costs."""

import subprocess
import sys

from appliance import estimator


def test_every_public_name_is_there_once():
    assert sorted(set(estimator.__all__)) == sorted(estimator.__all__)
    assert [name for name in estimator.__all__ if not hasattr(estimator, name)] == []


def test_importing_the_package_imports_no_tensorflow():
    script = "import sys, appliance; print([name for name in sys.modules if name.startswith('tensorflow')])"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
