/**
 * The guest of a fake VM. Commands really run, as child processes of the test, and files are really written, below a
 * directory of the VM. It implements the part of protocol/src/guest-api.ts that the control plane relies on.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { createReadStream, createWriteStream } from 'node:fs'
import { mkdir, rename, rm, stat } from 'node:fs/promises'
import type { ServerHttp2Stream } from 'node:http2'
import { constants } from 'node:os'
import path from 'node:path'
import { pipeline } from 'node:stream/promises'
import { respondJson } from '@warren/kit/host-router'
import { GUEST_EXEC_PIECE_MAX_BYTES, type GuestExecCommand, GuestIdentityBody, guestExecFrame } from '@warren/protocol'
import { Value } from 'typebox/value'
import { type FakeProcesses, serveProcesses } from './fake-processes.ts'
import { serveShell, serveTunnel } from './fake-streams.ts'
import { readBody } from './read-body.ts'

export type FakeGuest = FakeProcesses & {
  /** What its authorized_keys would be. */
  sshPubkeys: string[]
  commands: Set<ChildProcess>
}

export async function serveGuest(guest: FakeGuest, method: string, url: URL, stream: ServerHttp2Stream): Promise<void> {
  const path = url.pathname.replace(/^.*\/guest\//, '')
  const route = `${method} ${path}`
  if (path.startsWith('processes')) return serveProcesses(guest, method, path.slice('processes'.length), url, stream)
  if (route === 'POST exec') return serveExec(guest, stream)
  if (route === 'PUT files') return putFile(guest, queryPath(url), stream)
  if (route === 'GET files') return getFile(guest, queryPath(url), stream)
  if (route === 'POST shell') return serveShell(stream)
  if (route === 'POST tunnel') return serveTunnel(url, stream)
  if (route === 'POST identity') return applyIdentity(guest, stream)
  respondJson(stream, 404, { code: 'not_found', message: route })
}

/** `+` is a plus here, unlike in forms. */
const queryPath = (url: URL): string => decodeURIComponent(/[?&]path=([^&]*)/.exec(url.search)?.[1] ?? '')

async function applyIdentity(guest: FakeGuest, stream: ServerHttp2Stream): Promise<void> {
  const body: unknown = JSON.parse((await readBody(stream)).toString())
  if (!Value.Check(GuestIdentityBody, body)) return respondJson(stream, 400, { code: 'invalid', message: 'identity' })
  guest.sshPubkeys = body.ssh_pubkeys ?? guest.sshPubkeys
  respondJson(stream, 200, body.ssh_pubkeys ? { ssh_pubkeys: guest.sshPubkeys.length } : {})
}

async function putFile(guest: FakeGuest, target: string, stream: ServerHttp2Stream): Promise<void> {
  const file = path.join(guest.root, target)
  if ((await stat(file).catch(() => undefined))?.isDirectory()) {
    return respondJson(stream, 400, { code: 'invalid_path', message: 'is a directory' })
  }
  const part = `${file}.part-${Math.random()}`
  await mkdir(path.dirname(file), { recursive: true })
  let bytes = 0
  stream.on('data', (chunk: Buffer) => {
    bytes += chunk.length
  })
  try {
    await pipeline(stream, createWriteStream(part), { end: true })
    if (stream.aborted) throw new Error('aborted')
    await rename(part, file)
    respondJson(stream, 200, { bytes })
  } catch {
    await rm(part, { force: true })
  }
}

async function getFile(guest: FakeGuest, target: string, stream: ServerHttp2Stream): Promise<void> {
  const file = path.join(guest.root, target)
  const found = await stat(file).catch(() => undefined)
  if (!found) return respondJson(stream, 404, { code: 'file_not_found', message: target })
  if (!found.isFile()) return respondJson(stream, 400, { code: 'invalid_path', message: 'is a directory' })
  stream.respond({ ':status': 200, 'content-length': found.size, 'x-from-guest': 'must not be forwarded' })
  await pipeline(createReadStream(file), stream).catch(() => {})
}

async function serveExec(guest: FakeGuest, stream: ServerHttp2Stream): Promise<void> {
  const frames = readFrames(stream)
  const first = await frames.next()
  if (first.done) return
  const command = JSON.parse(first.value.toString()) as GuestExecCommand
  stream.respond({ ':status': 200 })
  const child = spawn(command.cmd, command.args ?? [], {
    cwd: guest.root,
    env: { PATH: process.env.PATH, HOME: path.join(guest.root, 'root'), ...guest.envs, ...command.env },
    stdio: [command.stdin ? 'pipe' : 'ignore', 'pipe', 'pipe'],
    detached: true,
  })
  guest.commands.add(child)
  child.once('close', () => guest.commands.delete(child))
  const kill = () => child.pid && killGroup(child.pid)
  // A reset kills the whole session, including processes that outlived the command.
  stream.once('close', () => (stream.rstCode !== 0 || child.exitCode === null) && kill())
  stream.once('aborted', kill)

  try {
    await once(child, 'spawn')
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code
    const kind = code === 'ENOENT' ? 'not_found' : code === 'EACCES' ? 'not_executable' : 'other'
    return void stream.end(frame('error', { kind, message: `${command.cmd}: ${code}` }))
  }
  let timedOut = false
  const timer = command.timeout_ms
    ? setTimeout(() => {
        timedOut = true
        kill()
      }, command.timeout_ms)
    : undefined
  stream.write(frame('started', { pid: child.pid }))
  void feed(child, frames)
  const outputs = [copy(child, 'stdout', stream), copy(child, 'stderr', stream)]
  const [code, signal] = (await once(child, 'close')) as [number | null, NodeJS.Signals | null]
  clearTimeout(timer)
  await Promise.all(outputs)
  stream.end(
    frame('exit', {
      ...(signal ? { signal: constants.signals[signal] } : { code: code ?? 0 }),
      timed_out: timedOut,
    }),
  )
}

async function feed(child: ChildProcess, frames: AsyncGenerator<Buffer>): Promise<void> {
  child.stdin?.on('error', () => {}) // It may exit without reading everything.
  try {
    for await (const bytes of frames) {
      if (child.stdin && !child.stdin.write(bytes)) await once(child.stdin, 'drain')
    }
  } catch {
    return
  }
  child.stdin?.end()
}

async function copy(child: ChildProcess, name: 'stdout' | 'stderr', stream: ServerHttp2Stream): Promise<void> {
  const closed = new AbortController()
  stream.once('close', () => closed.abort())
  try {
    for await (const chunk of child[name] as AsyncIterable<Buffer>) {
      for (let from = 0; from < chunk.length; from += GUEST_EXEC_PIECE_MAX_BYTES) {
        if (stream.destroyed) return
        const piece = chunk.subarray(from, from + GUEST_EXEC_PIECE_MAX_BYTES)
        if (!stream.write(guestExecFrame(name, piece)))
          await Promise.race([once(stream, 'drain'), once(stream, 'close')])
      }
    }
  } catch {
    // The reader disconnected, which kills the command.
  }
}

function killGroup(pid: number): void {
  try {
    process.kill(-pid, 'SIGKILL')
  } catch {
    // It has already exited.
  }
}

const frame = (type: 'error' | 'started' | 'exit', value: unknown): Uint8Array =>
  guestExecFrame(type, Buffer.from(JSON.stringify(value)))

/** The payloads of the request, independent of how it was split. */
async function* readFrames(stream: ServerHttp2Stream): AsyncGenerator<Buffer> {
  let buffered = Buffer.alloc(0)
  for await (const chunk of stream.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
    buffered = Buffer.concat([buffered, chunk])
    while (buffered.length >= 5 && buffered.length >= 5 + buffered.readUInt32BE(1)) {
      const end = 5 + buffered.readUInt32BE(1)
      yield buffered.subarray(5, end)
      buffered = buffered.subarray(end)
    }
  }
}
