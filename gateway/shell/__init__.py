"""What commands share: options, output, progress, interrupts, and the demo.

`options.py` makes options of settings, `terminal.py` writes JSON and tables, `progress.py` shows a running topology,
`interrupts.py` handles signals, `doctor.py` checks the machine, `demo.py` is `skyray demo`. Read first: `terminal.py`,
then `options.py`.
"""
