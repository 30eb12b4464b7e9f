"""`python -m examples.demo`: a small generative-retrieval model, with and without a constraint."""

from __future__ import annotations

from pathlib import Path

import click

from maskwright.cli.wording import console


@click.command()
@click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Real semantic IDs and histories (folders index, info, valid, test) instead of the synthetic catalogue.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo-results"),
    show_default=True,
    help="Folder to write the results to.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Another seed makes another catalogue."
)
def main(data: Path | None, out: Path, seed: int) -> None:
    """Train a small generative-retrieval model and compare unconstrained with constrained beam search."""
    from . import run  # brings in torch and scikit-learn

    report = run(data=data, out=out, seed=seed, progress=lambda line: click.echo(line, err=True))
    report.print(console())


if __name__ == "__main__":
    main()
