/**
 * Shell scripts that run in sandboxes. They get their values as arguments, never as text inside the script, and need nothing
 * but a POSIX shell, tar, gzip and find.
 */
import type { ProcessCreateBody } from '@warren/protocol'

/** In the home directory of root: what the gateway needs. It is not part of a result. */
export const GUEST_FOLDER = '.warren'
/** The file API needs an absolute path. */
export const guestFile = (name: string): string => `/root/${GUEST_FOLDER}/${name}`

export const ARCHIVE = 'files.tar.gz'
export const RESULT = 'result.tar.gz'
export const CONTEXT = 'context'
const STAMP = 'stamp'

const script = (text: string, ...args: string[]): ProcessCreateBody => ({
  cmd: '/bin/sh',
  args: ['-c', text, 'warren', ...args],
})

/** Below the home directory: the folder of the app, or of the context of a Dockerfile. */
export const unpackArchive = (folder: string): ProcessCreateBody =>
  script('set -e; cd "$HOME"; mkdir -p "$1"; tar -xzf "$2" -C "$1"; rm "$2"', folder, `${GUEST_FOLDER}/${ARCHIVE}`)

/** The names are in a file, separated by NUL. Folders that become empty go too: an archive has none. */
export const removeFiles = (folder: string, list: string): ProcessCreateBody =>
  script('set -e; cd "$1"; xargs -0 -r rm -f -- < "$2"; find . -depth -mindepth 1 -type d -empty -delete', folder, list)

/** Over the whole file system. */
export const unpackSystem = (): ProcessCreateBody =>
  script('set -e; tar -xpzf "$HOME/$1" -C /; rm "$HOME/$1"', `${GUEST_FOLDER}/${ARCHIVE}`)

/** A command of the project. The tools that it installed come first, and output of Python appears in the log as it is written. */
const IN_PROJECT = `cd "$HOME/$1" || exit 1
PATH="$PWD/.venv/bin:$PWD/node_modules/.bin:$PATH"
PYTHONUNBUFFERED="\${PYTHONUNBUFFERED-1}"
export PATH PYTHONUNBUFFERED
if [ -d .venv ]; then VIRTUAL_ENV="$PWD/.venv"; export VIRTUAL_ENV; fi
exec /bin/sh -c "$2" </dev/null`

export const projectCommand = (folder: string, command: string): ProcessCreateBody =>
  script(IN_PROJECT, folder, command)

/** An install command can create the virtual environment that the rest of it uses, so its folder is on PATH from the start. */
export const packFolder = (folder: string): ProcessCreateBody =>
  script(
    'set -e; cd "$HOME"; tar -cf - --exclude=./node_modules/.cache -C "$1" . | gzip -1 > "$2"',
    folder,
    `${GUEST_FOLDER}/${RESULT}`,
  )

/** What has changed after this moment belongs to the result of a Dockerfile. */
export const stampTime = (): ProcessCreateBody => script('touch "$HOME/$1" && sleep 0.1', `${GUEST_FOLDER}/${STAMP}`)

/**
 * By the time at which a file's entry changed: unpacked files have old modification times. Deletions are not part of it. The
 * list names folders too, whose content tar must not add: the option counts only for what follows it.
 */
const PACK_SYSTEM = `set -e
cd /
find . -xdev \\( -path ./proc -o -path ./sys -o -path ./dev -o -path ./run -o -path ./tmp -o -path ./var/tmp \\
  -o -path "./root/$1" -o -path ./root/.cache -o -path ./root/.npm -o -path ./var/cache/apt -o -path ./var/lib/apt/lists \\
  -o -path ./var/log -o -path ./etc/hostname -o -path ./etc/hosts -o -path ./etc/resolv.conf -o -path './etc/ssh/ssh_host_*' \\) \\
  -prune -o -cnewer "/root/$1/$2" ! -type s -print0 > "/root/$1/changed"
tar --no-recursion --null -T "/root/$1/changed" -cf - | gzip -1 > "/root/$1/$3"`

export const packSystem = (): ProcessCreateBody => script(PACK_SYSTEM, GUEST_FOLDER, STAMP, RESULT)

/** Starts a program as a user, by name or number, in a folder that is created if it is missing. */
const AS_USER = `user=$1 group=$2 folder=$3
shift 3
umask 022
mkdir -p "$folder" && cd "$folder" || exit 1
HOME=$(getent passwd "$user" | cut -d: -f6)
HOME=\${HOME:-/}
export HOME
if [ "$user" = root ] && [ -z "$group" ]; then exec "$@" </dev/null; fi
if getent passwd "$user" > /dev/null; then
  [ -n "$group" ] || group=$(id -g "$user")
  exec setpriv --reuid "$user" --regid "$group" --init-groups -- "$@" </dev/null
fi
case $user in *[!0-9]*) echo "user $user does not exist" >&2; exit 1;; esac
exec setpriv --reuid "$user" --regid "\${group:-0}" --clear-groups -- "$@" </dev/null`

export type Program = { argv: string[]; env: Record<string, string>; user: string; workdir: string }

/** With exactly these variables, and HOME. */
export function isolatedProgram({ argv, env, user, workdir }: Program): ProcessCreateBody {
  const [name, group] = parseUser(user)
  const assignments = Object.entries(env).map(([key, value]) => `${key}=${value}`)
  const clean = ['/bin/sh', '-c', 'exec env -i "HOME=$HOME" "$@"', 'warren']
  return script(AS_USER, name, group, workdir, ...clean, ...assignments, ...argv)
}

/** With these variables beside those of the sandbox. */
export function addedProgram({ argv, env, user, workdir }: Program): ProcessCreateBody {
  const [name, group] = parseUser(user)
  const assignments = Object.entries(env).map(([key, value]) => `${key}=${value}`)
  return script(AS_USER, name, group, workdir, 'env', ...assignments, ...argv)
}

function parseUser(text: string): [user: string, group: string] {
  const colon = text.indexOf(':')
  return colon < 0 ? [text || 'root', ''] : [text.slice(0, colon) || 'root', text.slice(colon + 1)]
}

export const makeFolder = (path: string, user: string): ProcessCreateBody =>
  script('[ -d "$1" ] || { mkdir -p "$1" && { [ -z "$2" ] || chown "$2" "$1"; }; }', path, user)

/**
 * COPY and ADD: a folder is copied by its content, patterns are those of the shell, several sources need a folder. Stages share
 * one file system, so a file may be its own copy.
 */
const COPY = `set -e
base=$1 destination=$2 owner=$3 mode=$4 unpacks=$5
shift 5
cd "$base"
IFS=
copy_one() {
  if [ -d "$1" ] && [ ! -L "$1" ]; then
    mkdir -p "$destination"
    [ "$1" -ef "$destination" ] || cp -a "$1/." "$destination/"
    target=$destination
  elif [ "$unpacks" = yes ] && tar -tf "$1" > /dev/null 2>&1; then
    mkdir -p "$destination"
    tar -xf "$1" -C "$destination"
    return
  else
    case $destination in
      */) mkdir -p "$destination"; target=$destination$(basename "$1");;
      *) if [ -d "$destination" ]; then target=$destination/$(basename "$1")
         else mkdir -p "$(dirname "$destination")"; target=$destination; fi;;
    esac
    [ "$1" -ef "$target" ] || cp -a "$1" "$target"
  fi
  [ -z "$owner" ] || chown -R "$owner" "$target"
  [ -z "$mode" ] || chmod -R "$mode" "$target"
}
for pattern in "$@"; do
  found=
  for source in $pattern; do
    [ -e "$source" ] || [ -L "$source" ] || continue
    found=yes
    copy_one "$source"
  done
  [ -n "$found" ] || { echo "$pattern does not exist" >&2; exit 1; }
done`

export type Copy = {
  /** Absolute. */
  base: string
  sources: string[]
  destination: string
  owner: string
  mode: string
  unpacks: boolean
}

export const copyFiles = ({ base, sources, destination, owner, mode, unpacks }: Copy): ProcessCreateBody =>
  script(COPY, base, destination, owner, mode, unpacks ? 'yes' : 'no', ...sources)

/** TCP ports on which programs in the sandbox listen. */
export const listListeningPorts = (): [cmd: string, args: string[]] => ['/bin/cat', ['/proc/net/tcp', '/proc/net/tcp6']]
