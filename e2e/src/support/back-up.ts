/** Back-up and restore with the commands that docs/operating.md gives to operators. */
import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { ROOT } from './instance.ts'

const DOCUMENT = path.join(ROOT, 'docs/operating.md')
/** How the document calls them. */
const [DATA_DIR, BACK_UP, RESTORED] = ['/var/lib/warren', 'warren-backup.tar', '/srv/restored']

/** Of a Warren that is stopped. */
export const backUp = (dataDir: string, file: string): void =>
  runDocumented(['data=', 'tar --create '], { [DATA_DIR]: dataDir, [BACK_UP]: file })

/** The data directory must not exist. */
export const restore = (file: string, dataDir: string): void =>
  runDocumented(['mkdir ', 'tar --extract '], { [BACK_UP]: file, [RESTORED]: dataDir })

/** Runs the lines of the document that begin so, in this order, with other paths. */
function runDocumented(beginnings: string[], paths: Record<string, string>): void {
  const lines = readFileSync(DOCUMENT, 'utf8').split('\n')
  const script = beginnings.map((beginning) => {
    const found = lines.filter((line) => line.startsWith(beginning))
    if (found.length !== 1) throw new Error(`${DOCUMENT} has ${found.length} lines that begin with "${beginning}"`)
    return Object.entries(paths).reduce((line, [from, to]) => line.replace(from, to), found[0]!)
  })
  execFileSync('sh', ['-euc', script.join('\n')], { stdio: ['ignore', 'inherit', 'inherit'] })
}
