"""Answer prompts on several devices, or in several processes, with the heads split over them.

    torchrun --nproc-per-node 2 -m pa_tutorial.distributed "The for statement"

The options are those of python -m pa_tutorial.engine, and --limit.
"""

import os
import sys
from functools import partial

from pa_tutorial.arguments import require
from pa_tutorial.distributed.group import joined
from pa_tutorial.distributed.heads import require_num_ranks
from pa_tutorial.distributed.runner import serve
from pa_tutorial.engine.command import answer, engine_options, make_parser, prompts_of
from pa_tutorial.engine.llm import load_model
from pa_tutorial.printing import print_anything

START = "torchrun --nproc-per-node 2 -m pa_tutorial.distributed"


def main(arguments: list[str] | None = None) -> int:
    """As one rank of several: rank 0 prints the answers.

    Returns 1 if a request was refused or failed; exits with 2 if the engine can't be created.
    """
    parser = make_parser(START, __doc__)
    waits = "seconds a rank waits for the others (60)"
    parser.add_argument("--limit", type=float, default=60.0, help=waits)
    args = parser.parse_intermixed_args(arguments)
    try:
        prompts, (model, tokenizer) = prompts_of(args), load_model(args.model)
        num_ranks = int(os.environ.get("WORLD_SIZE", 0))
        require(num_ranks > 0, "WORLD_SIZE", num_ranks, f"set: start it with {START}")
        require_num_ranks(model, num_ranks, "--nproc-per-node")
        with joined(args.limit) as group:
            work = partial(answer, args=args, prompts=prompts)
            return serve(model, tokenizer, group, work, **engine_options(args)) or 0
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    print_anything()
    sys.exit(main())
