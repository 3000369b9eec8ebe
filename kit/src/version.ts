/** The version of the whole product: `version` in the package.json at the root, and nowhere else. */
import { readFileSync } from 'node:fs'
import path from 'node:path'

const PACKAGE_FILE = path.resolve(import.meta.dirname, '../../package.json')

export const VERSION: string = (JSON.parse(readFileSync(PACKAGE_FILE, 'utf8')) as { version: string }).version
