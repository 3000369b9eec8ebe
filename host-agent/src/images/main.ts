/** `warren images`: lists, inspects, builds, imports and removes images. Works while Warren runs and while it does not. */
import { diskLevels, findShortage, readDiskSpace } from '@warren/kit/disk-space'
import { onStopSignal } from '@warren/kit/stop'
import { warrenCommand } from '@warren/kit/warren-command'
import { isTemplateImage } from '@warren/protocol'
import type { Command } from 'commander'
import { createCommand, oneLine, runCli, type Terminal } from '../cli.ts'
import { readHostConfig } from '../config.ts'
import { findImage } from './image.ts'
import { inspectImage } from './inspect.ts'
import { findCurrentKernel } from './kernel.ts'
import { renderImages, renderInspection } from './render.ts'
import { renderSbom } from './sbom.ts'
import { type ImageStore, openImageStore, readCacheDir } from './store.ts'
import { findTemplateImage, listTemplateImages } from './template-images.ts'

const HELP = `
A sandbox keeps the image it started from when that image is built or imported again.
Images of templates are in the data directory; all others are in the cache, which the data directories share.
Reads WARREN_CACHE_DIR, XDG_CACHE_HOME, WARREN_DATA_DIR, WARREN_DEBIAN_MIRROR and WARREN_DEBIAN_SECURITY_MIRROR.
Exit status: 0 on success, 1 on failure, 2 for a wrong command line.`

const IMPORT_HELP = `
The source is one of:
  a reference in a registry, such as registry.example/ubuntu:26.04
  an OCI image layout
  an archive made by docker save or podman save
  a tarball of a root file system

The digests of an image and its layers are always checked. Whether an image from a registry must be signed is decided by the
policy of this machine (/etc/containers/policy.json, see man containers-policy.json). Without one, name the image by its
digest, registry.example/ubuntu@sha256:…, or use --insecure-policy.`

export function createImagesCommand(terminal: Terminal, signal?: AbortSignal): Command {
  const images = createCommand('warren images', terminal)
    .description('List, inspect, build, import and remove images, the root file systems of sandboxes')
    .option('--json', 'print the result as JSON')
    .addHelpText('after', HELP)

  const print = (value: unknown, text: string) =>
    terminal.stdout.write(images.opts<{ json?: boolean }>().json ? `${JSON.stringify(value, null, 2)}\n` : text)
  const printImage = async (store: ImageStore, name: string) => {
    const list = (await store.list()).filter((image) => image.name === name)
    print(list[0], renderImages(list))
  }
  const log = { info: () => {}, warn: (_: object, text: string) => void terminal.stderr.write(`${text}\n`) }
  const openStore = () => openImageStore({ cacheDir: readCacheDir(terminal.env), log })
  /** Images are in the cache, which may be on another volume than the data directory. */
  const checkSpace = async () => {
    const { cacheDir, diskFloorMib } = readHostConfig(terminal.env)
    const space = readDiskSpace(cacheDir)
    const shortage = findShortage(space, diskLevels(space, diskFloorMib))
    if (shortage !== undefined) throw new Error(`no space for an image in ${cacheDir}: ${shortage}`)
  }
  const progress = createProgressPrinter(terminal.stderr)

  images
    .command('list')
    .description('list the images that are ready, being built or failed to build, and those of templates')
    .action(async () => {
      const { dataDir } = readHostConfig(terminal.env)
      const list = [...(await (await openStore()).list()), ...(await listTemplateImages(dataDir))]
      print(list, renderImages(list))
    })

  images
    .command('inspect')
    .argument('<name>', 'name of the image')
    .option('--sbom', 'print a bill of materials in CycloneDX JSON, the same on each machine with the same software')
    .description('show the packages of an image, and the versions and digests of what runs it on this machine')
    .action(async (name: string, { sbom }: { sbom?: boolean }) => {
      const cache = { cacheDir: readCacheDir(terminal.env), log }
      const { dataDir } = readHostConfig(terminal.env)
      // Nothing is opened: that would also remove what seems to be left over.
      const image = await (isTemplateImage(name) ? findTemplateImage(dataDir, name) : findImage(cache, name))
      if (!image) throw new Error(`there is no image ${name}; see ${warrenCommand()} images list`)
      const inspection = await inspectImage(cache, image, await findCurrentKernel(cache))
      if (sbom) terminal.stdout.write(`${JSON.stringify(renderSbom(inspection), null, 2)}\n`)
      else print(inspection, renderInspection(inspection))
    })

  images
    .command('build')
    .argument('<name>', 'debian:13, devbox:1, or kernel for the kernel of the guests')
    .description('build an image, or the guest kernel, from the current packages')
    .action(async (name: string) => {
      await checkSpace()
      const store = await openStore()
      if (name === 'kernel') {
        const kernel = await store.rebuildKernel(progress.show, signal).finally(progress.end)
        print({ version: kernel.version, digest: kernel.digest }, `kernel ${kernel.version} is ready\n`)
        return
      }
      const image = await store.rebuild(name, progress.show, signal).finally(progress.end)
      await printImage(store, image.name)
    })

  images
    .command('import')
    .argument('<source>', 'image to import')
    .requiredOption('--name <name>', 'name of the new image, such as ubuntu:26.04')
    .option(
      '--insecure-policy',
      'import from a registry by tag although this machine has no signature policy: only digests are checked',
    )
    .description('import an image from a registry or a file')
    .addHelpText('after', IMPORT_HELP)
    .action(async (source: string, { name, insecurePolicy }: { name: string; insecurePolicy?: boolean }) => {
      await checkSpace()
      const store = await openStore()
      const image = await store.import({ source, name, insecurePolicy }, progress.show, signal).finally(progress.end)
      await printImage(store, image.name)
    })

  images
    .command('rm')
    .argument('<name>', 'name of the image')
    .description('remove an image that no sandbox uses')
    .action(async (name: string) => {
      if (isTemplateImage(name)) throw new Error(`${name} belongs to a template; delete the template instead`)
      // A running sandbox is found by its open files. A paused one does not need the image: its base has a link to it.
      await (await openStore()).remove(name, () => false)
      print({ name }, `removed ${name}\n`)
    })

  return images
}

/** Returns the exit status. */
export const images = (args: string[], terminal: Terminal, signal?: AbortSignal): Promise<number> =>
  runCli(createImagesCommand(terminal, signal), args, terminal)

/** On a terminal one line is overwritten; a file gets one line per step. */
function createProgressPrinter(stderr: Terminal['stderr']): { show: (text: string) => void; end: () => void } {
  let step = ''
  return {
    show(text) {
      if (stderr.isTTY) return void stderr.write(`\r\x1b[K${oneLine(text).slice(0, 100)}`)
      const [current = ''] = oneLine(text).split(': ')
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
