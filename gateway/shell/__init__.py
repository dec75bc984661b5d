"""What commands share: options and settings, output, progress, interrupts, checks of the machine."""
