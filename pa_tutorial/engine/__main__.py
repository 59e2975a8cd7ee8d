"""Answer prompts from the command line.

    python -m pa_tutorial.engine "The for statement" "The while statement" --backend cpu

Without --model, TinyLM answers, a model trained on the documentation of Python's statements.
"""

import sys

from pa_tutorial.engine.command import answer, engine_options, make_parser, prompts_of
from pa_tutorial.engine.llm import LLM
from pa_tutorial.printing import print_anything


def main(arguments: list[str] | None = None) -> int:
    """Print the answers to each prompt.

    Returns 1 if a request was refused (also for bad sampling parameters) or failed; exits with 2
    if the engine can't be created.
    """
    parser = make_parser("python -m pa_tutorial.engine", __doc__)
    args = parser.parse_intermixed_args(arguments)
    try:
        prompts = prompts_of(args)
        llm = LLM(args.model, **engine_options(args))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    return answer(llm, args, prompts)


if __name__ == "__main__":
    print_anything()
    sys.exit(main())
