/** Every row there is, in the order they run: those that fill the database come last. */
import type { Row } from './row.ts'
import { getSandboxRow, whoamiRow } from './rows/front-door.ts'
import { listByStatusRow, listRow } from './rows/sandbox-list.ts'

export const ROWS: readonly Row[] = [whoamiRow, getSandboxRow, listRow, listByStatusRow]
