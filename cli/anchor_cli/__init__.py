"""The command line `anchor`: open, ask, render.

    main         the app: registers the commands, turns errors into one line and an exit code
    options      the options that commands share      selection  --step, --pass, --call, --rank
    terminal     what the screen can show             table      aligned text
    complete     shell completion                     exits      the exit codes

    serve runs names pull hist stats     one file a command
    formats      what `pull` writes
    limits bars png svg                  how `hist` looks

Data goes to stdout, all else to stderr. Heavy imports stay inside the commands, so that `--help`
and completion answer at once.
"""
