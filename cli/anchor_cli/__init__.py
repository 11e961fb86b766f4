"""The command line `anchor`: open, ask, render.

main      the app: registers the commands, turns errors into one line and an exit code
exits     the exit codes                  options   what commands share
terminal  what the screen can show        table     aligned text
complete  shell completion                bash      what bash asks, in our words
files     written whole, or not at all    words     numbers in sentences
progress  a bar on long work

serve, runs, names, pull, hist, stats, …  the commands, a file each
selection, narrowing  --step, --pass, …   selected  the records they leave
missing    what the answer lacks          extract, formats  what `pull` takes out, and writes
measured, answer  what `hist` counts and says
limits, bars, panel, png, svg             how it looks
compared, grown, sections                 what `compare` says, in 25 lines
paired, renamed, onward                   its rows, the file of --map, what to run next
tree                                      `names --tree`
following, summarised                     what `tail` sees, and a record as a row
junit, github                             what CI reads of `compare`
exported                                  what `export` tells every tracker
tensorboard, wandb, mlflow, hierarchy     how each of them, and zarr, is told it
surroundings, destinations, checkup       what `doctor` looks at; finding: what it says of it
imported, dumps, placing                  what `import` takes in, and where it belongs
report                                    the page, which anchorlib.report makes

Data goes to stdout, all else to stderr. Heavy imports stay inside the commands, so that `--help`
and completion answer at once.
"""
