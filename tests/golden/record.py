"""Records golden histories: ``python -m tests.golden.record v1``.

What is released is never recorded again: a set that is there is kept, unless ``--unreleased`` says that no
release has written with these schemas yet. ``--states`` writes only what its histories fold to.
"""

from __future__ import annotations

import argparse
import shutil

from tests.golden import shelf
from tests.golden.scenes import play


def main() -> None:
    parser = argparse.ArgumentParser(description="Record golden histories.")
    parser.add_argument("version", help="the set: v1, v2, ...")
    parser.add_argument("--unreleased", action="store_true", help="replace a set that was never released")
    parser.add_argument("--states", action="store_true", help="only what the histories fold to")
    options = parser.parse_args()
    folder = shelf.FOLDER / options.version
    if not options.states:
        if folder.exists() and not options.unreleased:
            parser.error(f"{options.version} is recorded; its bytes are what every later build has to read")
        records = [shelf.Golden(topic, key, value, shelf.told(topic, value)) for topic, key, value in play()]
        shutil.rmtree(folder, ignore_errors=True)
        shelf.save(options.version, records)
    shelf.save_states(options.version)


if __name__ == "__main__":
    main()
