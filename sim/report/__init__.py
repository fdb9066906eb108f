"""What a finished job leaves behind: table, pictures, report and manifest."""
