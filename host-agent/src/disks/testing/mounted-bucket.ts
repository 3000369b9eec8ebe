/** The mount program on this machine, as a guest would run it, with a mount of a test proxy. */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import fs from 'node:fs'
import { mkdir, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { createInterface } from 'node:readline'
import { addCleanUp, type Scope } from '@warren/kit/testing/clean-up'
import type { TestS3Server } from '@warren/kit/testing/s3-server'
import { scaleLimit } from '@warren/kit/testing/slowness'
import { runCommand, runCommandOrThrow } from '../../run-command.ts'
import type { S3Proxy } from '../s3-proxy-client.ts'
import type { S3ProxyMount } from '../s3-proxy-protocol.ts'
import { addGuest } from './proxy.ts'

const PROGRAM = path.resolve(import.meta.dirname, '../../../../bucket-mount/target/warren/bucket-mount')
const START_LIMIT_MS = 30_000

type Line = Record<string, unknown>

export type MountedBucket = {
  /** Where it is mounted. */
  path: string
  stageFolder: string
  child: ChildProcess
  /** Sends a command (bucket-mount/src/control.rs) and returns the answer. */
  command(body: Line): Promise<Line & { ok: boolean; status: MountStatus }>
  /** Saves and unmounts, and mounts again. */
  remount(): Promise<void>
}

export type MountStatus = {
  conditions: string
  dirty_files: number
  problems: { path: string; message: string; kept?: string }[]
}

export async function mountBucket(
  scope: Scope,
  proxy: S3Proxy,
  server: TestS3Server,
  given: Partial<S3ProxyMount> = {},
): Promise<MountedBucket> {
  // The address that connections to loopback come from.
  const guest = await addGuest(proxy, server, { sandboxIp: '127.0.0.1', ...given })
  const folder = await mkdtemp(path.join(tmpdir(), 'bucket-mount-'))
  const mountPoint = path.join(folder, 'mount')
  await mkdir(mountPoint)
  const commands = path.join(folder, 'commands')
  await runCommandOrThrow('mkfifo', [commands])
  const config = {
    address: `127.0.0.1:${proxy.port}`,
    token: guest.token,
    mount_point: mountPoint,
    stage_folder: path.join(folder, 'stage'),
    read_only: guest.mount.readOnly,
  }
  let program = await startProgram(config, commands)
  addCleanUp(scope, async () => {
    program.child.kill('SIGKILL')
    if (program.child.exitCode === null && program.child.signalCode === null) await once(program.child, 'exit')
    await runCommand('umount', ['-l', mountPoint]).catch(() => {}) // Not mounted any more.
    await rm(folder, { recursive: true, force: true })
  })
  return {
    path: mountPoint,
    stageFolder: config.stage_folder,
    get child() {
      return program.child
    },
    command: (body) => program.command(body),
    async remount() {
      const exit = once(program.child, 'exit')
      const answer = await program.command({ do: 'unmount', deadline_ms: 60_000 })
      if (!answer.ok) throw new Error(`failed to unmount: ${JSON.stringify(answer)}`)
      await exit
      program = await startProgram(config, commands)
    },
  }
}

/** It reads commands from a pipe, and what Node calls one is a socket, so `commands` is the path of a FIFO. */
async function startProgram(config: object, commands: string) {
  const reader = fs.openSync(commands, fs.constants.O_RDONLY | fs.constants.O_NONBLOCK)
  const writer = fs.openSync(commands, fs.constants.O_WRONLY)
  const child = spawn(PROGRAM, [], { stdio: [reader, 'pipe', 'inherit'] })
  fs.closeSync(reader)
  child.once('exit', () => fs.closeSync(writer))
  const write = (line: object) => fs.writeSync(writer, `${JSON.stringify(line)}\n`)
  write(config)
  const waiting = new Map<number, (line: Line) => void>()
  const { promise: mounted, resolve, reject } = Promise.withResolvers<void>()
  const seen = new Set<string>()
  createInterface({ input: child.stdout! }).on('line', (text) => {
    const line = JSON.parse(text) as Line & { id?: number; event?: string; status?: MountStatus }
    if (line.id !== undefined) waiting.get(line.id)?.(line)
    if (line.event === 'failed') reject(new Error(`the mount program failed: ${text}`))
    if (line.event === 'mounted') seen.add('mounted')
    if (line.event === 'status' && line.status?.conditions !== 'unknown') seen.add('conditions')
    if (seen.size === 2) resolve()
  })
  child.once('exit', (code, signal) => reject(new Error(`the mount program exited: ${code ?? signal}`)))
  const timer = setTimeout(
    () => reject(new Error('the mount program did not mount in time')),
    scaleLimit(START_LIMIT_MS),
  )
  await mounted.finally(() => clearTimeout(timer))
  let lastId = 0
  return {
    child,
    command(body: Line): Promise<Line & { ok: boolean; status: MountStatus }> {
      const id = ++lastId
      const { promise, resolve } = Promise.withResolvers<Line>()
      waiting.set(id, resolve)
      write({ id, ...body })
      return promise as Promise<Line & { ok: boolean; status: MountStatus }>
    },
  }
}
