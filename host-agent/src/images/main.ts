/** `warren images …`: lists, builds, imports and removes images, also while Warren runs. */
import { parseArgs } from 'node:util'
import { onStopSignal } from '@warren/kit/stop'
import { errorText } from '@warren/kit/text'
import { type ImageStore, openImageStore, readCacheDir } from './index.ts'
import { oneLine, renderImages } from './render.ts'

const HELP = `Usage: warren images <command> [options]

  list                            what there is, what is being built and what failed
  build <name>                    build debian:13 or devbox:1 with the packages of today; \`kernel\` the guests' kernel
  import <source> --name <name>   bring an image: a reference in a registry (registry.example/ubuntu:26.04), an OCI
                                  layout, an archive made by docker or podman save, or a tarball of a root filesystem
  rm <name>                       remove an image that no sandbox uses

  --json   print the result as JSON
  --help   print this

Sandboxes keep the image they started from when it is built or imported anew.
Reads WARREN_CACHE_DIR, XDG_CACHE_HOME, WARREN_DEBIAN_MIRROR and WARREN_DEBIAN_SECURITY_MIRROR.
Exit status: 0 when it is done, 1 when it is not, 2 for a wrong command.
`

type Output = { write(text: string): unknown; isTTY?: boolean }
type Terminal = Pick<NodeJS.Process, 'env'> & { stdout: Output; stderr: Output }
type Command = { words: string[]; name?: string; json: boolean; help: boolean }

/** Gives the exit status. */
export async function images(args: string[], terminal: Terminal, signal?: AbortSignal): Promise<number> {
  const command = parseCommand(args)
  if (command instanceof Error) {
    terminal.stderr.write(`warren images: ${command.message}\n\n${HELP}`)
    return 2
  }
  if (command.help) {
    terminal.stdout.write(HELP)
    return 0
  }
  try {
    const log = { info: () => {}, warn: (_: object, text: string) => void terminal.stderr.write(`${text}\n`) }
    const store = await openImageStore({ cacheDir: readCacheDir(terminal.env), log })
    await runCommand(store, command, terminal, signal)
    return 0
  } catch (error) {
    terminal.stderr.write(`warren images: ${oneLine(errorText(error))}\n`)
    return 1
  }
}

async function runCommand(
  store: ImageStore,
  command: Command,
  terminal: Terminal,
  signal?: AbortSignal,
): Promise<void> {
  const print = (value: unknown, text: string) =>
    terminal.stdout.write(command.json ? `${JSON.stringify(value, null, 2)}\n` : text)
  const [verb, subject] = command.words as [string, string] // parseCommand counted them
  const progress = showProgress(terminal.stderr)
  if (verb === 'list') {
    const list = await store.list()
    print(list, renderImages(list))
    return
  }
  if (verb === 'rm') {
    // Sandboxes that run are seen by their open files.
    await store.remove(subject, () => false)
    print({ name: subject }, `removed ${subject}\n`)
    return
  }
  if (verb === 'build' && subject === 'kernel') {
    const kernel = await store.rebuildKernel(progress.show, signal).finally(progress.end)
    print({ version: kernel.version, digest: kernel.digest }, `kernel ${kernel.version} is ready\n`)
    return
  }
  const building =
    verb === 'build'
      ? store.rebuild(subject, progress.show, signal)
      : store.import({ source: subject, name: command.name! }, progress.show, signal) // parseCommand wants it
  const { name } = await building.finally(progress.end)
  const list = (await store.list()).filter((image) => image.name === name)
  print(list[0], renderImages(list))
}

const WORDS = { list: 1, build: 2, import: 2, rm: 2 } as const

function parseCommand(args: string[]): Command | Error {
  try {
    const { values, positionals: words } = parseArgs({
      args,
      allowPositionals: true,
      options: { name: { type: 'string' }, json: { type: 'boolean' }, help: { type: 'boolean', short: 'h' } },
    })
    const command = { words, name: values.name, json: values.json ?? false, help: values.help ?? false }
    return command.help ? command : checkCommand(command)
  } catch (error) {
    return error as Error // parseArgs throws nothing else
  }
}

function checkCommand(command: Command): Command | Error {
  const [verb = 'nothing', ...subjects] = command.words
  if (!Object.hasOwn(WORDS, verb)) return new Error(`there is no command ${verb}`)
  const wanted = WORDS[verb as keyof typeof WORDS] - 1 // it has it
  if (subjects.length < wanted)
    return new Error(`${verb} needs ${verb === 'import' ? 'a source' : 'the name of an image'}`)
  if (subjects.length > wanted) return new Error(`${verb} does not take ${subjects[wanted]}`)
  if (verb === 'import' && command.name === undefined) return new Error('import needs --name, such as ubuntu:26.04')
  if (verb !== 'import' && command.name !== undefined) return new Error(`${verb} takes no --name`)
  return command
}

/** On a terminal one line that changes; in a file a line for each step. */
function showProgress(stderr: Output): { show: (text: string) => void; end: () => void } {
  let step = ''
  return {
    show(text) {
      if (stderr.isTTY) return void stderr.write(`\r\x1b[K${oneLine(text).slice(0, 100)}`)
      const current = oneLine(text).split(': ')[0]! // split gives at least one part
      if (current !== step) stderr.write(`${current}\n`)
      step = current
    },
    end: () => void (stderr.isTTY && stderr.write('\r\x1b[K')),
  }
}

if (import.meta.main) {
  const stopping = new AbortController()
  onStopSignal(() => stopping.abort(new Error('stopped')))
  process.exitCode = await images(process.argv.slice(2), process, stopping.signal)
}
