/** The files of a base. They are read-only once the base is built. */
export type BaseFiles = { image: string; disk: string; ram: string; state: string }
