/**
 * Runs a tool of e2fsprogs on a file whose content is hostile. The tool runs in a jail like that of QEMU
 * (vmm/jail/root.ts), but without anything that it could write: its root has these tools and their libraries, and the file is
 * a descriptor. It runs under a user id that owns nothing but this file, in its own cgroup.
 */
import { randomBytes } from 'node:crypto'
import { constants, openSync } from 'node:fs'
import { chown, rm, stat } from 'node:fs/promises'
import { Socket } from 'node:net'
import type { Deps } from '../deps.ts'
import { runCommandOrThrow } from '../run-command.ts'
import { JAIL_BINARY } from '../vmm/jail/options.ts'
import { ensureToolsRoot } from '../vmm/jail/root.ts'
import type { VmmLauncher } from '../vmm/launcher-client.ts'
import type { ProgramExit } from '../vmm/launcher-protocol.ts'
import { findProcess, killProcess } from '../vmm/process.ts'

export type ToolDeps = Pick<Deps, 'cgroups' | 'launcher'> & { config: Pick<Deps['config'], 'cacheDir'> }

const TOOLS = ['dumpe2fs', 'e2fsck', 'resize2fs'] as const
export type Tool = (typeof TOOLS)[number]

const OUTPUT_MAX_BYTES = 1024 * 1024
/** Checking and shrinking 5 GB takes seconds, on a slow disk minutes. */
const TIMEOUT_MS = 900_000
/** Of a file system with 16 million inodes e2fsck needs less than a tenth. The cache of the file's pages counts too. */
const MEMORY_MAX_BYTES = 1024 ** 3
const OPEN_FILES_MAX = 64
/** Of all tools that run at the same time: they have the same user id. */
const THREADS_MAX = 16
/** The descriptor of the file in the tool, and its name there. */
const FILE_FD = 3
const REPORT_FD = 4
export const FILE = `/proc/self/fd/${FILE_FD}`

export type FileResult = { exitCode: number; output: string }

/** `FILE` in `args` is the file. Afterwards it belongs to root again. */
export async function runOnFile(
  deps: ToolDeps,
  file: string,
  uid: number,
  [tool, ...args]: readonly [Tool, ...string[]],
  signal?: AbortSignal,
): Promise<FileResult> {
  const { folder, programs } = await ensureToolsRoot(deps.config.cacheDir, TOOLS)
  return runInToolJail(deps, folder, file, uid, [programs[tool], ...args], signal)
}

/** For any program of a root directory. */
export async function runInToolJail(
  { cgroups, launcher }: ToolDeps,
  root: string,
  file: string,
  uid: number,
  command: readonly string[],
  signal?: AbortSignal,
): Promise<FileResult> {
  const ended = AbortSignal.any([AbortSignal.timeout(TIMEOUT_MS), ...(signal ? [signal] : [])])
  ended.throwIfAborted()
  const id = `tool-${randomBytes(8).toString('hex')}`
  const outputPath = `${file}.output`
  const output = await openOutput(outputPath)
  try {
    const { procs } = await cgroups.create(id, { memoryBytes: MEMORY_MAX_BYTES, threads: THREADS_MAX })
    const { size } = await stat(file)
    await chown(file, uid, uid)
    const jail = [
      ...['--root', root, '--uid', `${uid}`, '--gid', `${uid}`, '--filter', '--dies-with-parent'],
      ...[
        '--limit',
        'fsize',
        `${size}`,
        '--limit',
        'nofile',
        `${OPEN_FILES_MAX}`,
        '--limit',
        'nproc',
        `${THREADS_MAX}`,
      ],
      ...procs.flatMap((procsFile) => ['--cgroup', procsFile]),
      ...['--report', `${REPORT_FD}`, '--'],
    ]
    const exitCode = await runToEnd(launcher, ended, {
      command: JAIL_BINARY,
      args: [...jail, ...command],
      env: { LC_ALL: 'C.UTF-8' },
      uid: 0,
      gid: 0,
      files: [{ fd: FILE_FD, path: file, flags: 'r+' }],
      stdoutPath: outputPath,
      stderrPath: outputPath,
      reportFd: REPORT_FD,
    })
    return { exitCode, output: await output.text }
  } finally {
    output.close()
    await rm(outputPath, { force: true })
    await chown(file, 0, 0)
    await cgroups.remove(id)
  }
}

/** Returns the exit code, which is -1 if a signal ended the program. */
async function runToEnd(
  launcher: VmmLauncher,
  ended: AbortSignal,
  request: Parameters<typeof launcher.request<'spawn'>>[1],
): Promise<number> {
  const exits = new Map<number, ProgramExit>() // A program may have exited before its pid is known here.
  const { promise: died, reject: onDeath } = Promise.withResolvers<never>()
  died.catch(() => {}) // Only awaited while the program runs.
  let onExit = () => {}
  const onNotice = ({ exited }: { exited: ProgramExit }) => {
    exits.set(exited.pid, exited)
    onExit()
  }
  const onLauncherDeath = () => onDeath(new Error('the VMM launcher died, and the tool with it'))
  launcher.on('notice', onNotice)
  launcher.on('died', onLauncherDeath)
  try {
    const { pid } = await launcher.request('spawn', request)
    const handle = findProcess(pid)
    const kill = () => void (handle && killProcess(handle).catch(() => {})) // Its exit is awaited below.
    ended.addEventListener('abort', kill)
    if (ended.aborted) kill()
    const exited = new Promise<void>((resolve) => {
      onExit = () => exits.has(pid) && resolve()
      onExit()
    })
    await Promise.race([exited, died]).finally(() => ended.removeEventListener('abort', kill))
    ended.throwIfAborted()
    return exits.get(pid)?.code ?? -1
  } finally {
    launcher.off('notice', onNotice)
    launcher.off('died', onLauncherDeath)
  }
}

/** A named pipe and not a file, because a taken over tool could fill the disk. What is too much is read and dropped. */
async function openOutput(file: string): Promise<{ text: Promise<string>; close: () => void }> {
  await rm(file, { force: true })
  await runCommandOrThrow('mkfifo', ['-m', '600', file])
  const fd = openSync(file, constants.O_RDONLY | constants.O_NONBLOCK)
  const pipe = new Socket({ fd, readable: true, writable: false })
  let text = ''
  pipe.setEncoding('utf8').on('data', (more: string) => {
    if (text.length < OUTPUT_MAX_BYTES) text += more
  })
  const { promise, resolve } = Promise.withResolvers<string>()
  pipe.once('close', () => resolve(text))
  return { text: promise, close: () => pipe.destroy() }
}
