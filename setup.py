"""Which folders become which packages; everything else about the build stands in pyproject.toml.

`cli` and `migrations` are too common as import names, so both are installed under a name of our own.
Sub-packages are found here because setuptools' own finder does not rename; every file that lies in a
package goes into the wheel (a test compares the wheel with what git tracks).
"""

from setuptools import find_packages, setup

ROOMS = {
    "coffer_common": "coffer_common",
    "coffer_supervisor": "coffer_supervisor",
    "coffer_worker": "coffer_worker",
    "coffer_cli": "cli",
    "coffer_migrations": "migrations",
}

setup(
    packages=[
        name for top, folder in ROOMS.items() for name in (top, *(f"{top}.{below}" for below in find_packages(folder)))
    ],
    package_dir=ROOMS,
    package_data={"": ["*"]},
)
