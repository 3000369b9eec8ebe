/** `warren bases`: lists and prepares bases. A running host agent does both, because only it knows what is being built. */
import { setTimeout as delay } from 'node:timers/promises'
import { Board } from '@warren/kit/board'
import { errorText } from '@warren/kit/error-text'
import { onStopSignal } from '@warren/kit/stop'
import { warrenCommand } from '@warren/kit/warren-command'
import { type HostBaseBody, type HostState, SHAPES, type Shape } from '@warren/protocol'
import { type Command, InvalidArgumentError } from 'commander'
import { createCommand, oneLine, runCli, type Terminal } from '../cli.ts'
import { type Config, readHostConfig } from '../config.ts'
import { callHost } from '../host-client.ts'
import { renderBases, renderShape } from './render.ts'

const HELP = `
A base is a machine that was booted once for an image, a shape and a disk size, and saved. New sandboxes are clones of it,
so the first one of an image and shape waits until its base is booted, unless it was prepared.
Needs a running Warren. Reads WARREN_DATA_DIR.
Exit status: 0 on success, 1 on failure, 2 for a wrong command line.`

const renderPrepareHelp = (): string => `
Without shapes, those of WARREN_PREPARE_SHAPES are prepared. What is being prepared continues if this command is stopped.

Examples:
  ${warrenCommand()} bases prepare debian:13 s-4vcpu-8gb
  ${warrenCommand()} bases prepare devbox:1 --all`

const POLL_MS = 300

type Prepared = { image: string; shapes: string; booted?: boolean; took_ms?: number; error?: string }

export function createBasesCommand(terminal: Terminal, signal?: AbortSignal): Command {
  const bases = createCommand('warren bases', terminal)
    .description('List and prepare bases, the booted machines that sandboxes are cloned from')
    .option('--json', 'print the result as JSON')
    .addHelpText('after', HELP)

  const isJson = () => bases.opts<{ json?: boolean }>().json ?? false
  const printJson = (value: unknown) => terminal.stdout.write(`${JSON.stringify(value, null, 2)}\n`)

  bases
    .command('list')
    .description('list the bases of this data directory and those that are being built')
    .action(async () => {
      const { bases: list } = await callHost(readHostConfig(terminal.env), 'listBases', undefined, signal)
      if (isJson()) printJson(list)
      else terminal.stdout.write(renderBases(list))
    })

  bases
    .command('prepare')
    .argument('<image>', 'name of an image on this host')
    .argument('[shapes...]', 'shapes to prepare it for')
    .option('--all', 'prepare it for every shape that fits into the memory of this host')
    .option('--disk <MiB>', 'disk size; sandboxes with disks smaller than 10240 MiB have separate bases', parseMib)
    .description('boot the bases of an image now, so that its first sandboxes start at once')
    .addHelpText('after', renderPrepareHelp)
    .action(async (image: string, names: string[], options: { all?: boolean; disk?: number }) => {
      const config = readHostConfig(terminal.env)
      const host = await callHost(config, 'getHost', undefined, signal)
      checkImage(host, image)
      const { shapes, tooLarge } = chooseShapes(host, config, names, options.all ?? false)
      const board = new Board(isJson() ? terminal.stderr : terminal.stdout)
      if (tooLarge.length > 0) board.print(`  left out, larger than ${host.mem_mib} MiB: ${tooLarge.join(', ')}`)
      const done: Prepared[] = []
      for (const { vcpu, mem_mib, default_disk_mib } of shapes) {
        const body = { image, vcpu, mem_mib, disk_mib: options.disk ?? default_disk_mib }
        done.push(await prepareOne(config, body, board, signal))
      }
      if (isJson()) printJson(done)
      if (done.some(({ error }) => error !== undefined)) terminal.exitCode = 1
    })

  return bases
}

/** Returns the exit status. */
export const bases = (args: string[], terminal: Terminal, signal?: AbortSignal): Promise<number> =>
  runCli(createBasesCommand(terminal, signal), args, terminal)

function parseMib(text: string): number {
  if (!/^[1-9]\d{0,8}$/.test(text)) throw new InvalidArgumentError('It must be a whole number of MiB.')
  return Number(text)
}

function checkImage({ images }: HostState, name: string): void {
  const image = images.find((one) => one.name === name)
  if (!image) throw new Error(`unknown image ${name}; this host has ${images.map((one) => one.name).join(', ')}`)
  if (image.state !== 'ready')
    throw new Error(`${name} is ${image.state}${image.progress ? `: ${image.progress}` : ''}`)
}

/** One shape per base: shapes that differ in their CPU limit only have the same one. */
function chooseShapes(host: HostState, config: Config, names: readonly string[], all: boolean) {
  if (all && names.length > 0) throw new Error('name shapes or use --all, not both')
  const known = SHAPES.map(({ id }) => id)
  const unknown = names.filter((name) => !known.includes(name))
  if (unknown.length > 0) throw new Error(`unknown shape ${unknown.join(', ')}; known are ${known.join(', ')}`)
  const wanted = all ? known : names.length > 0 ? names : config.prepareShapes
  if (wanted.length === 0) throw new Error('WARREN_PREPARE_SHAPES is none; name shapes or use --all')
  const fits = ({ mem_mib }: Shape) => !all || mem_mib <= host.mem_mib
  const chosen = SHAPES.filter(({ id }) => wanted.includes(id))
  const shapes = new Map(chosen.filter(fits).map((shape) => [`${shape.vcpu} ${shape.mem_mib}`, shape]))
  return { shapes: [...shapes.values()], tooLarge: chosen.filter((shape) => !fits(shape)).map(({ id }) => id) }
}

/** A failure is part of the result: the other shapes are prepared all the same. */
async function prepareOne(config: Config, body: HostBaseBody, board: Board, signal?: AbortSignal): Promise<Prepared> {
  const about = { image: body.image, shapes: renderShape(body) }
  const name = `${about.image} ${about.shapes}`
  const task = board.start(name)
  const finished = new AbortController()
  const watching = watchProgress(config, body, task.progress, finished.signal)
  try {
    const { booted, took_ms } = await callHost(config, 'prepareBase', body, signal)
    task.end(`  ${name}: ${booted ? `booted in ${(took_ms / 1000).toFixed(1)} s` : 'is ready'}`)
    return { ...about, booted, took_ms }
  } catch (error) {
    const text = signal?.aborted ? 'stopped waiting; the host continues' : oneLine(errorText(error))
    task.end(`  ${name}: ${signal?.aborted ? '' : 'failed: '}${text}`)
    signal?.throwIfAborted()
    return { ...about, error: text }
  } finally {
    finished.abort()
    await watching
  }
}

async function watchProgress(
  config: Config,
  { vcpu, mem_mib }: HostBaseBody,
  show: (text: string) => void,
  signal: AbortSignal,
): Promise<void> {
  while (!signal.aborted) {
    // The request for the base reports what goes wrong.
    const list = await callHost(config, 'listBases', undefined, signal).catch(() => undefined)
    const building = list?.bases.find(
      (base) => base.state === 'building' && base.vcpu === vcpu && base.mem_mib === mem_mib,
    )
    if (building?.progress && !signal.aborted) show(building.progress)
    await delay(POLL_MS, undefined, { signal }).catch(() => {}) // Aborted: the loop ends.
  }
}

if (import.meta.main) {
  const stopping = new AbortController()
  onStopSignal(() => stopping.abort(new Error('stopped')))
  process.exitCode = await bases(process.argv.slice(2), process, stopping.signal)
}
