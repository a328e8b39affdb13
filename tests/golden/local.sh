# No scheduler here: 2 processes, in one session
export COURSE_RUN_FOLDER=RUN_FOLDER
PYTHON -uP -m course.jobs.supervise RUN_FOLDER 0 2 job &
PYTHON -uP -m course.jobs.supervise RUN_FOLDER 1 2 job
