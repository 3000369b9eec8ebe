/** The record of a build on disk: its last attempt, as the host API shows it. Its VM is in no record and dies with its attempt. */
import { HostBuild } from '@warren/protocol'
import { type Static, Type } from 'typebox'
import { Value } from 'typebox/value'

const BuildRecord = Type.Object({ version: Type.Literal(1), build: HostBuild })
type BuildRecord = Static<typeof BuildRecord>

export const renderRecord = (build: HostBuild): string =>
  `${JSON.stringify({ version: 1, build } satisfies BuildRecord, null, 2)}\n`

/** Throws if it is damaged, or of a newer version. */
export function parseRecord(text: string, id: string): HostBuild {
  const record: unknown = JSON.parse(text)
  if (!Value.Check(BuildRecord, record) || record.build.id !== id) throw new Error('not the record of this build')
  return record.build
}
