/** `warren snapshots …`: lists, checks and tidies up what is saved of sandboxes, also while Warren runs. */
import { closeSync, existsSync, openSync } from 'node:fs'
import http2 from 'node:http2'
import net from 'node:net'
import path from 'node:path'
import { parseArgs } from 'node:util'
import { errorText } from '@warren/kit/text'
import { type Config, readHostConfig } from '../config.ts'
import { becomeOnlyOne } from '../net/process-lock.ts'
import { openRegistry } from '../vms/registry.ts'
import { objectsOf } from './manifest.ts'
import { renderSnapshots, type SnapshotLine } from './render.ts'
import { openSnapshotStore, type SnapshotStore } from './store.ts'
import { checkFile } from './sums.ts'

const HELP = `Usage: warren snapshots <command> [options]

  ls [sandbox]       the generations that are kept, newest first
  verify [sandbox]   read every saved file and compare it with its checksums
  gc                 remove files that no generation names any more; the host agent does so at every start

  --json   print the result as JSON
  --help   print this

Reads WARREN_DATA_DIR. Exit status: 0 when all is well, 1 when something is damaged or fails, 2 for a wrong command.
`

type Output = { write(text: string): unknown }
type Terminal = Pick<NodeJS.Process, 'env'> & { stdout: Output; stderr: Output }

/** Gives the exit status. */
export async function snapshots(args: string[], terminal: Terminal): Promise<number> {
  const command = parseCommand(args)
  if (command instanceof Error) {
    terminal.stderr.write(`warren snapshots: ${command.message}\n\n${HELP}`)
    return 2
  }
  if (command.help) {
    terminal.stdout.write(HELP)
    return 0
  }
  try {
    const config = readHostConfig(terminal.env)
    const print = (value: unknown, text: string) =>
      terminal.stdout.write(command.json ? `${JSON.stringify(value, null, 2)}\n` : text)
    if (command.verb === 'gc') {
      const collected = await collect(config)
      print(collected, `removed ${collected.removed} files, ${Math.ceil(collected.bytes / 1e6)} MB\n`)
      return 0
    }
    const store = await openSnapshotStore(path.join(config.dataDir, 'snapshots'))
    const lines = listLines(store, command.sandbox)
    if (command.verb === 'verify') for (const line of lines) line.damage ??= verify(store, line)
    print(lines, renderSnapshots(lines, command.verb === 'verify'))
    return lines.some((line) => line.damage !== undefined) ? 1 : 0
  } catch (error) {
    terminal.stderr.write(`warren snapshots: ${errorText(error)}\n`)
    return 1
  }
}

function listLines(store: SnapshotStore, wanted: string | undefined): SnapshotLine[] {
  const lines: SnapshotLine[] = []
  for (const [sandbox, list] of store.all()) {
    if (wanted !== undefined && sandbox !== wanted) continue
    for (const { generation, manifest, damage } of list) {
      const bytes = manifest && objectsOf(manifest).reduce((sum, object) => sum + object.bytes, 0)
      const about = manifest && { saved_at: manifest.saved_at, layers: manifest.disk.length, bytes: bytes ?? 0 }
      lines.push({ sandbox, generation, ...about, ...(damage === undefined ? {} : { damage }) })
    }
  }
  if (wanted !== undefined && lines.length === 0) throw new Error(`nothing is saved of ${wanted}`)
  return lines
}

/** What is wrong with the first file that is not what it was. */
function verify(store: SnapshotStore, { sandbox, generation }: SnapshotLine): string | undefined {
  const manifest = store.find(sandbox, generation)?.manifest
  for (const object of manifest ? objectsOf(manifest) : []) {
    const file = store.fileOf(object.id)
    if (!existsSync(file)) return `${object.id} is missing`
    const fd = openSync(file, 'r')
    try {
      const wrong = checkFile(fd, object)
      if (wrong) return `${object.id}: ${wrong}`
    } finally {
      closeSync(fd)
    }
  }
  return undefined
}

/** Only the host agent knows what it is about to name; without one nobody is, and none begins meanwhile. */
async function collect(config: Config): Promise<{ removed: number; bytes: number }> {
  if (await answers(config.socket)) return askToCollect(config.socket)
  const release = await becomeOnlyOne(config.instance)
  try {
    const store = await openSnapshotStore(path.join(config.dataDir, 'snapshots'))
    const { records, broken } = await openRegistry(path.join(config.dataDir, 'vms')).list()
    if (broken.length > 0) throw new Error(`${broken.join(', ')} cannot be read; start Warren first, which mends that`)
    // A sandbox runs on without a host agent, and so does what it reads.
    for (const { body } of records) if (body) store.hold(body.id, body.layers)
    return await store.collect()
  } finally {
    release()
  }
}

function answers(socket: string): Promise<boolean> {
  return new Promise((resolve) => {
    const connection = net.connect(socket)
    connection.once('connect', () => resolve(true)).once('error', () => resolve(false))
    connection.once('connect', () => connection.destroy())
  })
}

async function askToCollect(socket: string): Promise<{ removed: number; bytes: number }> {
  const session = http2.connect('http://host', { createConnection: () => net.connect(socket) })
  try {
    const stream = session.request({ ':method': 'POST', ':path': '/v1/snapshots/collect' })
    const chunks: Buffer[] = []
    for await (const chunk of stream) chunks.push(chunk as Buffer)
    return JSON.parse(Buffer.concat(chunks).toString('utf8'))
  } finally {
    session.close()
  }
}

type Command = { verb: string; sandbox?: string; json: boolean; help: boolean }

function parseCommand(args: string[]): Command | Error {
  try {
    const { values, positionals } = parseArgs({
      args,
      allowPositionals: true,
      options: { json: { type: 'boolean' }, help: { type: 'boolean', short: 'h' } },
    })
    const [verb = 'nothing', sandbox, more] = positionals
    const help = values.help ?? false
    if (!help && !['ls', 'verify', 'gc'].includes(verb)) return new Error(`there is no command ${verb}`)
    const tooMuch = verb === 'gc' ? sandbox : more
    if (tooMuch !== undefined) return new Error(`${verb} does not take ${tooMuch}`)
    return { verb, json: values.json ?? false, help, ...(sandbox === undefined ? {} : { sandbox }) }
  } catch (error) {
    return error as Error // parseArgs throws nothing else
  }
}

if (import.meta.main) process.exitCode = await snapshots(process.argv.slice(2), process)
