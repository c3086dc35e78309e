"""Write tests/conformance/cel_golden.jsonl anew: the expressions that are in it, with Kubernetes'
answers.

python -m hack.oracle.cel_golden            (after adding lines {"expression": "..."} to the file)
"""

import json
from pathlib import Path

from hack.oracle.oracle import ask
from tests.support.cel_expressions import as_question

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "conformance" / "cel_golden.jsonl"


def main() -> None:
    expressions = [json.loads(line)["expression"] for line in GOLDEN.read_text("utf-8").splitlines()]
    answers = ask("cel", map(as_question, expressions))
    lines = [
        json.dumps({"expression": expression, **answer}, ensure_ascii=False, sort_keys=True)
        for expression, answer in zip(expressions, answers, strict=True)
        if answer["expect"] != "panic"  # where cel-go breaks there is nothing to agree with
    ]
    GOLDEN.write_text("\n".join(lines) + "\n", "utf-8")
    print(f"{len(lines)} answers in {GOLDEN.name}")


if __name__ == "__main__":
    main()
