"""The command line `anchor`: most commands open a run, read from it, and print an answer.

main      the app: registers the commands, turns an error into one line and an exit code
exits     the exit codes
files     writes the file of -o as a whole, or not at all
progress  a progress bar for long work
spools    says which spools (queues on disk) still hold records of a run

commands      the commands, such as `runs`, `pull` and `serve`: one file for each command
arguments     options that several commands share, such as --step; amounts, shell completion
terminal      the width of the screen; tables, trees and sentences on it
records       the records that a command is asked about, what is missing among them, file formats
histograms    the histograms of `hist`, as text, JSON, CSV, PNG and HTML
comparisons   the result of `compare` as text for a terminal, as rows of a table, and for CI
exports       the writers of `export`: zarr, TensorBoard, MLflow, Weights & Biases
imports       reads the dump folders of `import`
checkups      the checks of `doctor`
collector     the settings, the token and the signals of `serve`

Data goes to stdout, messages to stderr. Heavy imports stay inside the commands, so that `--help`
and completion answer at once.
"""
