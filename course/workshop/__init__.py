"""For those who prepare a workshop: the doctor, the rehearsal, recordings."""
