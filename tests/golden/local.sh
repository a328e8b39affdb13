# No scheduler here: 2 processes, in one session
export COURSE_RUN_FOLDER=RUN_FOLDER
PYTHON -u -m submitit.core._submit RUN_FOLDER/logs
