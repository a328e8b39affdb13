# Source this in the top folder of your clone of the course, in bash or zsh:
#     cd course && . @START@
# `course class init` wrote it; the instructor may add lines, such as `module load gcc`.
# A clone that others can write to would run their code as you, so nothing is set there.
if (
  refuse() { # ends only this subshell; a folder's name may contain codes for a terminal
    printf 'start.sh: %s\n' "$1" | LC_ALL=C tr -d '\000-\011\013-\037\177' >&2
    exit 1
  }
  here=$(pwd -P) top=@ENVIRONMENT@
  new='To make a clone in a folder of your own, such as your home:
  '@LINE@
  [ -r .git/HEAD ] && [ -r course/__main__.py ] ||
    refuse "$here is not the top folder of a clone of the course. Change to yours. $new"
  case $here in *:*) refuse "$here has a colon, which separates folders in PYTHONPATH. $new" ;; esac
  [ -x "$top/bin/python" ] || refuse "the environment $top cannot be read here. Ask your instructor"
  mine=0 # a group that may write: root's, or one that is only for you
  [ "$(id -gn 2>&1)" != "$(id -un 2>&1)" ] || mine=$(id -g)
  find_files() { command find . \( -path ./runs -o -path ./.git/objects \) -prune -o ! -type l "$@"; }
  open=$(find_files \( ! -uid "$(id -u)" -o -perm -002 -o -perm -020 ! -gid "$mine" \) -print |
    head -n 1)
  # With an access list (ACL), which ls marks by a plus, more than the group may write.
  if [ -z "$open" ] && find_files -perm -020 -exec ls -ld {} + | grep -q '^.\{10\}+'; then
    open=. why=' by an access list (ACL), see getfacl'
  fi
  [ -z "$open" ] || refuse "others could change $here/${open#./}${why-}, so they could run code as you. $new"
  above=${here%/*}
  while [ -n "$above" ]; do
    [ -z "$(command find "$above" -prune ! -perm -1000 \
      \( -perm -002 -o -perm -020 ! -gid "$mine" \) -print)" ] ||
      refuse "others can replace what is in $above, which has no sticky bit. $new"
    above=${above%/*}
  done
); then
  umask g-w,o-w
  unset PYTHONHOME VIRTUAL_ENV CONDA_PREFIX
  export @KIND@=@ENVIRONMENT@
  case $PATH in "$@KIND@/bin:"*) ;; *) export PATH="$@KIND@/bin:$PATH" ;; esac
  export PYTHONPATH="$(pwd -P)" # Python imports the course from here, and not the instructor's
@EXPORTS@
  printf 'The course in %s, site %s. JupyterLab: course lab\n' "$PYTHONPATH" "$COURSE_SITE"
else
  false
fi
