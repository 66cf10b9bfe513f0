"""python -m relpos --cmake-dir: what other builds ask of the installed package."""

import argparse
from pathlib import Path

from relpos import __version__


def cmake_dir() -> Path:
    """The folder of relposConfig.cmake, for `-Drelpos_DIR=`: the package carries the C++ headers
    and the static library, unless it is a ready wheel. Raises FileNotFoundError there."""
    folder = Path(__file__).resolve().parent / "lib" / "cmake" / "relpos"
    if not (folder / "relposConfig.cmake").is_file():
        raise FileNotFoundError(
            f"relposConfig.cmake: expected in {folder}, not found; a ready wheel has no C++ "
            "library, whose ABI is not your compiler's: build relpos from source, by pip or CMake"
        )
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m relpos", description="What other builds ask of the installed package."
    )
    parser.add_argument("--version", action="version", version=f"relpos {__version__}")
    parser.add_argument(
        "--cmake-dir",
        action="store_true",
        required=True,
        help="print the folder for find_package(relpos), to be given as -Drelpos_DIR=",
    )
    parser.parse_args()
    try:
        print(cmake_dir())
    except FileNotFoundError as error:
        parser.exit(2, f"python -m relpos: {error}\n")


if __name__ == "__main__":
    main()
