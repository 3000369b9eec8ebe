/** An upload of the form `{ type: 'files', files: [{ path, content }] }`. */
import { entryFault, UploadCollector, type UploadFile, type UploadLimits } from './collect.ts'
import { fault } from './fault.ts'
import { isObject } from './settings.ts'

export function readFiles(files: unknown, limits: UploadLimits): UploadFile[] {
  if (!Array.isArray(files)) throw fault('upload.files', 'must be a list of { path, content }')
  const collector = new UploadCollector(limits)
  collector.checkCount(files.length)
  return files.flatMap((file: unknown, i) => {
    if (!isObject(file) || typeof file.path !== 'string' || typeof file.content !== 'string') {
      throw fault(`upload.files[${i}]`, 'must have path and content as text')
    }
    const bytes = decodedLength(file.content)
    if (!collector.add(file.path, 'file', bytes)) return []
    const content = decodeBase64(file.content)
    if (!content) throw entryFault(file.path, 'is not valid base64')
    return [{ path: file.path, content, isExecutable: false }]
  })
}

/** Node skips what is not base64; encoding the result again shows that nothing was skipped. */
export function decodeBase64(text: string): Buffer | undefined {
  const bytes = Buffer.from(text, 'base64')
  return bytes.toString('base64') === text ? bytes : undefined
}

const decodedLength = (text: string): number => {
  const padding = text.endsWith('==') ? 2 : text.endsWith('=') ? 1 : 0
  return Math.max(Math.floor((text.length * 3) / 4) - padding, 0)
}
