"""The command line `anchor`: open, ask, render.

main      the app: registers the commands, turns errors into one line and an exit code
exits     the exit codes                  options   what commands share
terminal  what the screen can show        table     aligned text
complete  shell completion                bash      what bash asks, in our words
files     written whole, or not at all    words     numbers in sentences
progress  a bar on long work

commands      serve, runs, names, pull, hist, stats, …: a file each
arguments     options of several commands: --step, --pass, …; selections, amounts, completion
terminal      the screen; tables, trees and sentences on it
records       which records a command is asked about, what is missing of them, how they are written
histograms    what `hist` counts and says, as text, JSON, PNG and HTML
comparisons   what `compare` says, in 25 lines, as rows, and to CI
exports       what `export` tells every tracker, and zarr
imports       what `import` takes in, and where it belongs
checkups      what `doctor` looks at, and what it says of it
collector     what `serve` starts

Data goes to stdout, all else to stderr. Heavy imports stay inside the commands, so that `--help`
and completion answer at once.
"""
