"""Work for the tests of pa_tutorial.bench.process_pool: processes import it by its name."""

import os
import time


def work(item: object) -> object:
    """Doubles a number; a word says what goes wrong."""
    if item == "raise":
        raise ValueError("a first line\nand a second")
    if item == "die":
        os._exit(7)
    if item == "hang":
        time.sleep(60)
    return item * 2
