/** Images as text, for people. */
import type { HostImage } from '@warren/protocol/host-api'

const HEADINGS = ['NAME', 'STATE', 'SIZE', 'SMALLEST DISK', 'DIGEST'] as const
const DIGEST_CHARS = 'sha256:'.length + 12

export function renderImages(images: readonly HostImage[]): string {
  if (images.length === 0) return 'No images yet. `npm start` builds the first, or: warren images build debian:13\n'
  const rows = [HEADINGS, ...images.map(cells)]
  const widths = HEADINGS.map((_, column) => Math.max(...rows.map((row) => row[column]!.length))) // as long as HEADINGS
  const lines = rows.map((row) =>
    row
      .map((cell, column) => cell.padEnd(widths[column]!))
      .join('  ')
      .trimEnd(),
  )
  // Under its image what is going on with it.
  const texts = lines.flatMap((line, index) => {
    const progress = images[index - 1]?.progress
    return progress === undefined ? [line] : [line, `  ${oneLine(progress)}`]
  })
  return `${texts.join('\n')}\n`
}

const cells = (image: HostImage): string[] => [
  image.name,
  image.state,
  image.size_bytes === undefined ? '-' : `${Math.ceil(image.size_bytes / 1e6)} MB`,
  image.min_disk_mib === undefined ? '-' : `${image.min_disk_mib} MiB`,
  image.digest?.slice(0, DIGEST_CHARS) ?? '-',
]

/** Tools print what they like; a line stays a line and no escape reaches the terminal. */
export const oneLine = (text: string): string => text.replace(/[\s\p{Cc}]+/gu, ' ').trim()
