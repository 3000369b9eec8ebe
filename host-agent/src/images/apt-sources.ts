/** Parses the source files of apt, in both formats of sources.list(5). */

export type AptSource = { uris: string[]; suites: string[]; signedBy?: string }

export function parseAptSources(file: string, text: string): AptSource[] {
  return file.endsWith('.sources') ? parseStanzas(text) : parseLines(text)
}

/** deb [option=value …] uri suite component… */
const LINE = /^deb\s+(?:\[([^\]]*)\]\s*)?(\S+)\s+(\S+)/

function parseLines(text: string): AptSource[] {
  return text.split('\n').flatMap((line) => {
    const match = LINE.exec(line.trim())
    if (!match) return []
    const [, options = '', uri, suite] = match
    return [{ uris: [uri!], suites: [suite!], signedBy: /(?:^|\s)signed-by=(\S+)/i.exec(options)?.[1] }] // Both groups of LINE are required.
  })
}

function parseStanzas(text: string): AptSource[] {
  const stanzas = withoutComments(text).split(/\n\s*\n/)
  return stanzas.flatMap((stanza) => {
    const fields = parseFields(stanza)
    const isEnabled = (fields.get('enabled') ?? 'yes').toLowerCase() !== 'no'
    if (!isEnabled || !words(fields.get('types')).includes('deb')) return []
    const signedBy = fields.get('signed-by')
    return [
      {
        uris: words(fields.get('uris')),
        suites: words(fields.get('suites')),
        // The field has either a path or the key itself.
        signedBy: signedBy?.startsWith('/') ? signedBy : undefined,
      },
    ]
  })
}

const withoutComments = (text: string): string =>
  text
    .split('\n')
    .filter((line) => !line.startsWith('#'))
    .join('\n')

function parseFields(stanza: string): Map<string, string> {
  const joined = stanza.replace(/\n[ \t]+/g, ' ')
  const fields = joined.split('\n').map((line) => /^([\w-]+):\s*(.*)$/.exec(line.trim()))
  return new Map(
    fields.filter((field) => field !== null).map(([, name, value]) => [name!.toLowerCase(), value!.trim()]),
  ) // Both groups of the pattern are required.
}

const words = (text = ''): string[] => text.split(/\s+/).filter((word) => word !== '')
