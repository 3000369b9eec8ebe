/** Extended attributes of files, for tests that build images. */
import { bindSystemCall } from './system-call.ts'

const setxattr = bindSystemCall('int setxattr(str path, str name, void *value, size_t size, int flags)')

export const setExtendedAttribute = (file: string, name: string, value: Buffer): void =>
  void setxattr(file, name, value, value.length, 0)
