/** Prints the list of images, and what one consists of, as tables. */

import { renderLines } from '@warren/kit/table'
import { warrenCommand } from '@warren/kit/warren-command'
import type { HostImage } from '@warren/protocol/host-api'
import { oneLine } from '../cli.ts'
import type { Inspection } from './inspect.ts'

const TITLES = ['NAME', 'STATE', 'SIZE', 'SMALLEST DISK', 'DIGEST']
const DIGEST_CHARS = 'sha256:'.length + 12

export function renderImages(images: readonly HostImage[]): string {
  if (images.length === 0)
    return `No images yet. ${warrenCommand()} start builds the first, or: ${warrenCommand()} images build debian:13\n`
  const [titles = '', ...lines] = renderLines([TITLES, ...images.map(renderCells)])
  // The progress of a build, or the reason of its failure, follows the line of the image.
  const withProgress = images.flatMap(({ progress }, index) =>
    progress === undefined ? [lines[index]] : [lines[index], `  ${oneLine(progress)}`],
  )
  return `${[titles, ...withProgress].join('\n')}\n`
}

/** The machine first, then the packages, one per line, so that two outputs can be compared with diff. */
export function renderInspection({ name, digest, source, created_at, packages, machine }: Inspection): string {
  const head = renderLines([
    ['image', name],
    ['digest', digest],
    ['source', source],
    ['created', created_at],
  ])
  const programs = renderLines(machine.map((one) => [one.name, one.version, one.digest ?? '-']))
  const list = renderLines(packages.map((one) => [one.name, one.version, one.architecture, one.sha256 ?? '-']))
  const title =
    packages.length === 0 ? 'No packages of dpkg or apk are recorded in it.' : `${packages.length} packages:`
  return `${[...head, '', 'On this machine:', ...programs, '', title, ...list].join('\n')}\n`
}

const renderCells = (image: HostImage): string[] => [
  image.name,
  image.state,
  image.size_bytes === undefined ? '-' : `${Math.ceil(image.size_bytes / 1e6)} MB`,
  image.min_disk_mib === undefined ? '-' : `${image.min_disk_mib} MiB`,
  image.digest?.slice(0, DIGEST_CHARS) ?? '-',
]
