/** `warren snapshots`: lists, verifies and cleans up snapshots. Works while Warren runs and while it does not. */
import { closeSync, existsSync, openSync } from 'node:fs'
import path from 'node:path'
import type { Command } from 'commander'
import { createCommand, runCli, type Terminal } from '../cli.ts'
import { type Config, readHostConfig } from '../config.ts'
import { callHost, isListening } from '../host-client.ts'
import { acquireProcessLock } from '../process-lock.ts'
import { findVmmRecord } from '../vms/record.ts'
import { openRegistry } from '../vms/registry.ts'
import { checkFile } from './checksums.ts'
import { objectsOf } from './manifest.ts'
import { renderSnapshots, type SnapshotLine } from './render.ts'
import { openSnapshotStore, type SnapshotStore } from './store.ts'

const HELP = `
Reads WARREN_DATA_DIR.
Exit status: 0 on success, 1 on failure or damage, 2 for a wrong command line.`

export function createSnapshotsCommand(terminal: Terminal): Command {
  const snapshots = createCommand('warren snapshots', terminal)
    .description('List, verify and clean up the snapshots of paused sandboxes')
    .option('--json', 'print the result as JSON')
    .addHelpText('after', HELP)

  const print = (value: unknown, text: string) =>
    terminal.stdout.write(snapshots.opts<{ json?: boolean }>().json ? `${JSON.stringify(value, null, 2)}\n` : text)
  const openStore = () => openSnapshotStore(path.join(readHostConfig(terminal.env).dataDir, 'snapshots'))
  const printLines = (lines: SnapshotLine[], verified: boolean) => {
    print(lines, renderSnapshots(lines, verified))
    if (lines.some((line) => line.damage !== undefined)) terminal.exitCode = 1
  }

  snapshots
    .command('ls')
    .argument('[sandbox]', 'id of a sandbox; all sandboxes by default')
    .description('list the saved generations, newest first')
    .action(async (sandbox?: string) => printLines(listLines(await openStore(), sandbox), false))

  snapshots
    .command('verify')
    .argument('[sandbox]', 'id of a sandbox; all sandboxes by default')
    .description('read every saved file and compare it with its checksums')
    .action(async (sandbox?: string) => {
      const store = await openStore()
      const lines = listLines(store, sandbox)
      for (const line of lines) line.damage ??= findDamage(store, line)
      printLines(lines, true)
    })

  snapshots
    .command('gc')
    .description('remove files that no generation refers to; the host agent does this at every start')
    .action(async () => {
      const collected = await collect(readHostConfig(terminal.env))
      print(collected, `removed ${collected.removed} files, ${Math.ceil(collected.bytes / 1e6)} MB\n`)
    })

  return snapshots
}

/** Returns the exit status. */
export const snapshots = (args: string[], terminal: Terminal): Promise<number> =>
  runCli(createSnapshotsCommand(terminal), args, terminal)

function listLines(store: SnapshotStore, wanted: string | undefined): SnapshotLine[] {
  const lines: SnapshotLine[] = []
  for (const [sandbox, list] of store.listAll()) {
    if (wanted !== undefined && sandbox !== wanted) continue
    for (const { generation, manifest, damage } of list) {
      const bytes = manifest && objectsOf(manifest).reduce((sum, object) => sum + object.bytes, 0)
      const about = manifest && { saved_at: manifest.saved_at, layers: manifest.disk.length, bytes: bytes ?? 0 }
      lines.push({ sandbox, generation, ...about, ...(damage === undefined ? {} : { damage }) })
    }
  }
  if (wanted !== undefined && lines.length === 0) throw new Error(`there is no snapshot of ${wanted}`)
  return lines
}

/** Describes the first file that is missing or damaged. */
function findDamage(store: SnapshotStore, { sandbox, generation }: SnapshotLine): string | undefined {
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

/**
 * A running host agent does it, because only it knows which files its current operations are about to refer to. If none
 * runs, its lock is held meanwhile, so that none starts.
 */
async function collect(config: Config): Promise<{ removed: number; bytes: number }> {
  if (await isListening(config.socket)) return callHost(config, 'collectSnapshots')
  const release = await acquireProcessLock('netd', config.instance)
  try {
    const store = await openSnapshotStore(path.join(config.dataDir, 'snapshots'))
    const { records, unreadable } = await openRegistry(path.join(config.dataDir, 'vms')).list()
    if (unreadable.length > 0) {
      const ids = unreadable.map(({ id }) => id).join(', ')
      throw new Error(`the records of ${ids} cannot be read; start Warren first, which repairs that`)
    }
    // A sandbox keeps running without a host agent, so the files that it reads must stay.
    for (const record of records) {
      const vmm = findVmmRecord(record)
      if (vmm) store.retain(vmm.id, vmm.disk.layers)
    }
    return await store.collect()
  } finally {
    release()
  }
}

if (import.meta.main) process.exitCode = await snapshots(process.argv.slice(2), process)
